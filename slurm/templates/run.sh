{{ HEADER }}
{{ SBATCH }}
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
set -uo pipefail

{{ SETTINGS }}

{{ LIBRARY }}

begin
{{ SETUP }}
run_job
