"""Cells that hold no value, and those that may mean so: words of several languages and codes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from aam.io.text import without_accents

# Missing-value terms of INSDC, alone or with a colon and the reason, and what spreadsheets and R
# write.
INSDC = ("missing", "not applicable", "not collected", "not provided", "restricted access")
MISSING = frozenset({*INSDC, "", "na", "n/a", "nan", "null", "<na>", "nat"})
# Terms of `MISSING` with a reason, and errors of Excel, in English and German, and of LibreOffice.
GAP = re.compile(rf"({'|'.join(INSDC)}):.*|#(n/a|nv|[a-z]+[!?]|div/0!|getting_data)|err:\d+", re.S)
PUNCTUATION = re.compile(r"[-\u2010-\u2015\u2212.,:;?!*_/\\~'\"()\[\]<>|=#&%^`\u2026\s]+")
# Words that may mean missing, in lower case without accents, blanks and punctuation.
DOUBTFUL = re.compile(
    # English, with null flavours of HL7 and the blanks of Qiita.
    "none|nil|unk(nown)?|blank|empty|na|nd|nr|nk|tb[acd]|asku|nask|pending|awaited|withheld|"
    "(no|missing)(data|values?|response|answer|info(rmation)?|results?|sample)|data(missing|lost)|"
    "un(specified|determined|defined|available|recorded|assigned|certain|sure|disclosed|reported)|"
    "(non|in)applicable|tobe(determined|confirmed|announced)|skipped|losttofollowup|"
    "not(available|recorded|known|determined|reported|specified|done|measured|assessed|answered|"
    "tested|taken|performed|obtained|given|stated|asked|sampled|sure|completed|documented|"
    "evaluated|examined|disclosed|entered|received|submitted|indicated|registered|analy[sz]ed|"
    "sequenced|supplied|filled(in|out)?)|(patient)?(refus(ed|al)|declined)(toanswer)?|"
    "(i)?do(es)?n(o)?tknow|prefernotto(say|answer)|labcontroltest|na(character|integer|real)|"
    # German and Dutch.
    "ka|(keine|ohne)(angaben?|daten|antwort|information(en)?|werte?)|unbekannt|unklar|fehlt|"
    "fehlende?r?(wert)?|nicht(bekannt|erhoben|bestimmt|gemessen|vorhanden|verfugbar|zutreffend|"
    "angegeben|untersucht|dokumentiert|erfasst|durchgefuhrt|auswertbar)|entfallt|ausstehend|"
    "wei(ss|ß)nicht|verweigert|onbekend|(niet)(bekend|beschikbaar|gemeten|bepaald|ingevuld)|nvt|"
    "geen(gegevens|antwoord|data)|ontbreekt|weetniet|"
    # Spanish, Portuguese, Italian and French.
    "s/?d|sin(datos?|informacion|respuesta|especificar|registro|resultado)|nsnc|nose(sabe)?|"
    "no(disponible|aplica|aplicable|especificado|sabe|contesta|consta|registrado|medido|informado|"
    "determinado|realizado)|de(sconocid|sconhecid)[oa]|pendiente|pendente|rechazado|faltante|"
    "sem(dados?|informacao|resposta)|nao(disponivel|informado|aplicavel|se(aplica)?|sabe|"
    "determinado|medido|coletado|realizado)|ignorad[oa]|"
    "sconosciut[oa]|ignot[oa]|mancante|non(disponibile|applicabile|not[oa]|rilevat[oa]|"
    "specificat[oa]|determinat[oa]|eseguit[oa])|rifiutat[oa]|nonso|"
    "inconnue?|manquante?|nonrenseignee?|non(disponible|connue?|determinee?|mesuree?|precisee?|"
    "faite?|specifiee?)|nsp|nesai(t)?(s)?pas|enattente|refusee?|donnees?manquantes?|sansreponse|"
    # Nordic and Slavic languages, Turkish, Finnish, Hungarian.
    "okand|ukjent|ukendt|saknas|mangler|uppgiftsaknas|ejangivet|tuntematon|puuttuu|eitietoa|"
    "bilinmiyor|ismeretlen|nincsadat|brak(danych|odpowiedzi)?|niezna(ny|na|ne)|niedotyczy|"
    "nieokreslon[oya]|neznam[yae]|neuvedeno|chybi|нетданных|неизвестно|нд|пропуск|"
    # Chinese, Japanese and Korean.
    "未知|缺失|不详|不明|无数据|無資料|欠測|欠損|データなし|모름|미상"
)
# Missing values of SAS and Stata: .a to .z and ._
SPECIAL = re.compile(r"\.[a-z_]")
# Numbers that stand for a missing value in many surveys: -9, 99, -777 and the like.
SENTINELS = {float(digit * times) for digit in "789" for times in range(2, 7)}
SENTINELS |= {-number for number in (7.0, 8.0, 9.0, *SENTINELS)}
# Codes of one digit, among whole numbers that are not negative.
SHORT_CODES = {-1.0, 9.0}


def is_missing(value: str) -> bool:
    """Return whether a cell says that there is no value: empty, a term of `MISSING` in any case, an
    error of a spreadsheet, or punctuation only.
    """
    value = value.lower()
    return value in MISSING or bool(GAP.fullmatch(value) or PUNCTUATION.fullmatch(value))


def _plain(value: str) -> str:
    """Return letters and digits in lower case without accents."""
    return unicodedata.normalize("NFC", re.sub(r"[\W_]+", "", without_accents(value)))


def may_be_missing(value: str) -> bool:
    """Return whether a cell holds a word that means missing in some studies."""
    if is_missing(value):
        return False
    return bool(DOUBTFUL.fullmatch(_plain(value)) or SPECIAL.fullmatch(value.lower()))


def missing_codes(numbers: Sequence[float]) -> list[float]:
    """Return the numbers of a column that may be codes of a missing value, ascending: `SENTINELS`
    that stand out.

    They are farther from the other values than these from each other, or occur several times and
    are farther from them than a quarter of that, or are negative among others that are not.
    """
    times = Counter(numbers)
    are_whole = all(number % 1 == 0 for number in times)
    codes = SENTINELS | (SHORT_CODES if are_whole else set())
    values = times.keys() - codes
    if len(values) < 2:
        return []
    low, high = min(values), max(values)
    suspects = list[float]()
    for code in sorted(times.keys() & codes):
        gap, spread = max(low - code, code - high), high - low
        repeated = times[code] > 1 and code not in SHORT_CODES
        is_negative = code < 0 <= low and (code not in SHORT_CODES or times[code] > 1)
        if is_negative or gap > (spread / 4 if repeated else spread):
            suspects.append(code)
    return suspects
