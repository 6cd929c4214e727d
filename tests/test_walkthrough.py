"""docs/walkthrough.md is run line by line; its sentences name no number that was not printed."""
import doctest
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "walkthrough.md"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-\d+)?(?![\w%])")


def test_every_number_of_the_walkthrough_is_printed_again():
    """A lesson whose numbers are copied once and never run again is wrong after the next change."""
    result = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert result.attempted > 50 and result.failed == 0


def test_the_sentences_name_only_numbers_that_some_line_printed():
    """The doctest sees the code alone: 0.069 in the text below it could be any number."""
    parts = re.split(r"```", PAGE.read_text(encoding="utf-8"))
    prose = re.sub(r"^#.*|^    .*", "", "".join(parts[::2]), flags=re.M)
    printed = {float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", "".join(parts[1::2]))}
    said = [n for n in NUMBER.findall(prose) if "." in n or "e" in n or len(n) > 1]
    assert len(said) > 20
    assert [n for n in said if float(n) not in printed] == []
