"""What we make of a script against what bash makes of it: generated scripts, and the forms that people write."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.checklist.shell.expansion import NotANumber, calculate
from hypocenter.checklist.shell.follow import follow

SHOW = 'show() { printf "%s\\0" "$@"; printf "\\1"; }\n'  # each command's words, as bash hands them over


def of_bash(script: str) -> list[list[str]]:
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", SHOW + script], capture_output=True, text=True, timeout=20, env={}
    )
    assert done.returncode == 0, done.stderr
    return [part.split("\0")[:-1] for part in done.stdout.split("\1")[:-1]]


def of_ours(script: str) -> list[list[str]]:
    commands = follow(script, "script.sh", "script.sh").commands
    return [[field.text for field in fields[1:]] for fields in commands if fields[0].text == "show"]


WORD = st.text(alphabet="abc019._-/=,:", min_size=1, max_size=6)
SPACED = st.lists(WORD, min_size=0, max_size=3).map(" ".join)
NAME = st.sampled_from(["A", "B", "C"])


@st.composite
def scripts(draw: st.DrawFn) -> str:
    lines = ["A=1", "B='x y'", 'C=(one "two words" three)', "D="]
    for _ in range(draw(st.integers(1, 6))):
        name, text = draw(NAME), draw(SPACED)
        form = draw(st.integers(0, 9))
        lines.append(
            {
                0: f'S="{text}"',
                1: f"S='{text}'",
                2: f'S="{text} \\\n  {draw(WORD)}"',
                3: f"L=( {text} 'a b' \"${name}\" ) # a comment with ' and \"",
                4: f'L+=("{text}" ${name})',
                5: f"N=$(( {draw(st.integers(0, 99))} * ({draw(st.integers(1, 9))} + A) % 7 ))",
                6: f'S+=" {text}"',
                7: f'if [ "$S" == "{text}" ] || [[ -z "$D" && -n "{text}" ]]; then S=yes; else S="no"; fi',
                8: f'for i in {text} $S; do T="${{T:-start}} $i"; done',
                9: f'export E=${{D:-{draw(WORD)}}}; F=${{UNSET:-"{text}"}} G=${{A:+set}}',
            }[form]
        )
    lines.append('show $S "$S" ${L[@]} "${L[@]}" "${C[@]}" $C pre"$S"post')
    lines.append('show "n${N:-}" "${T:-none}" "$E" ${F:-} \'$A\' \\$A "a\\"b\\\\c" ${#C[@]} x${G:-}y $((3 + A))')
    return "\n".join(lines)


@settings(max_examples=150, deadline=None)
@given(scripts())
def test_the_words_are_those_that_bash_hands_over(script: str) -> None:
    script = f'S="" T="" L=() N=0 E="" F="" G=""\n{script}\n'

    assert of_ours(script) == of_bash(script)


@pytest.mark.parametrize(
    "script",
    [
        "show a \\\n  b \\\n  # a comment\nshow c",
        'show "a # no comment" a#b # a comment',
        "A=b; show $A$A ${A}c \"${A}\"'$A'",
        'A="--x 1\n --y 2"\nshow $A "$A"',
        "f() { show \"$@\" $1; }\nf 'a b' c",
        "function g { show $2; }\ng a b",
        "case abc in a*) show yes ;; *) show no ;; esac",
        "case x in a|b) show no;; (x) show yes;; esac",
        "if false; then show a; elif true; then show b; else show c; fi",
        "if ! [ 1 -gt 2 ]; then show yes; fi",
        "if [[ abc == a* ]]; then show glob; fi",
        "if [ 3 -ge 3 -a 1 -lt 2 ]; then show both; fi",
        "true && show a || show b",
        "false && show a || show b",
        "[ -z '' ] && show empty",
        "for x in 1 2 3; do show $x $((x * x)); done",
        'A=(a b c); show ${A[1]} ${#A[@]} "${A[@]}x"',
        'A=(); A+=(--k "v w"); show "${A[@]}"',
        "declare -a A=(x y)\nreadonly B=z\nshow ${A[@]} $B",
        "cat <<EOF >/dev/null\nshow hidden 'quote\nEOF\nshow after",
        "A=1 show b 2>&1; show c 2>/dev/null",
        "show a; show b & wait",
        "{ show a; show b; }",
        "(show a)",
        "show $'tab' \"$((2**10))\" $((7 / 2)) $((-7 / 2)) $((-7 % 3)) $((0x10)) $((1 << 4))",
        "A=5; show $((A > 3)) $(( A == 5 && !0 )) $((A*2+1))",
        'X=""; show ${X:-d} ${X-d} "${X:-}" ${Y-e} ${X:+f}',
        'show "a\'b" \'a"b\' a\\ b "\\n"',
        "Z=${W:=w}; show $W $Z",
        "show ''  \"\" x",
        'CMD="show a b"\n$CMD c',
    ],
)
def test_forms_that_people_write(script: str) -> None:
    assert of_ours(script) == of_bash(script)


OPERATORS = ["+", "-", "*", "/", "%", "<<", "<", ">", "<=", ">=", "==", "!=", "&&", "||"]
NUMBER = st.integers(0, 1000).map(str)
EXPRESSION = st.recursive(
    NUMBER,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        inner.map(lambda one: f"-({one})"),
        inner.map(lambda one: f"!({one})"),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(EXPRESSION)
def test_a_number_is_the_one_that_bash_computes(expression: str) -> None:
    try:
        ours = calculate(expression, lambda _: None)
    except NotANumber:
        return  # a division by zero, or more than 64 bits: bash fails or wraps, we say that we cannot tell

    assert [[str(ours)]] == of_bash(f"show $(({expression}))")


@pytest.mark.parametrize(
    "text", ["1/0", "1 % 0", "2**64", "a", "1 +", "(1", "1 2", "x[1]", "1; rm", "08", "$(date)", "9" * 30]
)
def test_what_is_no_number_is_never_guessed(text: str) -> None:
    with pytest.raises(NotANumber):
        calculate(text, lambda _: None)
