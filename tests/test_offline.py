"""The guards of conftest hold: no test and no child process can call the network, workers use one
thread.
"""

from __future__ import annotations

import os
import socket
import sys

import pytest
import torch

DOCUMENTATION_HOST = "192.0.2.1"


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("socket.connect", (None, (DOCUMENTATION_HOST, 80))),
        ("socket.connect", (None, ("2001:db8::1", 80, 0, 0))),
        ("socket.sendto", (None, (DOCUMENTATION_HOST, 53))),
        ("socket.getaddrinfo", ("example.invalid", 80, 0, 0, 0)),
        ("socket.gethostbyname", ("example.invalid",)),
    ],
)
def test_the_network_is_refused(event, arguments):
    with pytest.raises(RuntimeError, match="called the network"):
        sys.audit(event, *arguments)


def test_this_machine_can_be_reached():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getpeername() == server.getsockname()


def test_child_processes_are_refused_too(plain_python):
    source = f"""
import sys
try:
    sys.audit("socket.connect", None, ("{DOCUMENTATION_HOST}", 80))
except RuntimeError as error:
    print(error)
"""
    assert "called the network" in plain_python(source)


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" not in os.environ, reason="only workers are held to one thread"
)
def test_workers_use_one_thread():
    assert torch.get_num_threads() == 1


def test_annotations_are_checked():
    from aam.training.losses import unifrac_loss

    assert unifrac_loss(torch.zeros(3, 3), torch.zeros(3, 3))[1] == 3
    with pytest.raises(TypeError):
        unifrac_loss("far", torch.zeros(3, 3))
