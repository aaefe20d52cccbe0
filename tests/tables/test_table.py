"""The table of trials: what it holds comes back, what is wrong with a file is said, validation and test are apart."""

import dataclasses
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_trials import SPACE, STEPS, TRAININGS, made, trial

import autodropout as ad
from autodropout.spaces import ConvSpace, TransformerSpace
from autodropout.tables import Entry, Journal, Table, TableError, TableTrial
from autodropout.tables.parquet import HEAD, KINDS
from autodropout.tables.trials import NAMES, from_dict, to_dict
from studies.ptb.table import JOURNALS

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
scores = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Anything that a trial may be."""
    value = draw(scores | st.none())
    return Entry(
        TableTrial(
            phase=draw(texts),
            method=draw(texts),
            number=draw(st.integers(0, 2**31 - 1)),
            tokens=tuple(draw(st.integers(0, len(token.values) - 1)) for token in SPACE.tokens),
            rate=draw(st.floats(0, 1)),
            seed=draw(st.integers(0, 2**63 - 1)),
            training=draw(st.sampled_from(sorted(TRAININGS))),
            steps=draw(st.integers(1, 2**31 - 1)),
            value=value,
            curve=tuple(draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), scores), max_size=3))),
            seconds=draw(st.floats(0, 1e6)),
            together=draw(st.integers(1, 1000)),
            stopped=draw(st.booleans()),
            failure=None if value is not None else draw(texts),
            log_prob=draw(scores | st.none()),
            version=draw(st.integers(0, 1000)),
        ),
        draw(scores | st.none()),
    )


def test_every_field_has_a_column() -> None:
    assert set(KINDS) == {*NAMES, "test"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries(), max_size=4, unique_by=lambda entry: entry.trial.key))
def test_what_is_written_is_read(tmp_path: Path, found: list[Entry]) -> None:
    """Through Parquet, and through a journal's lines."""
    table = Table("any", SPACE, TRAININGS, found, facts={"made by": "nobody", "minutes": 1.5})
    table.save(tmp_path / "any.parquet")
    again = ad.table(tmp_path / "any.parquet")
    assert (again.name, again.space, again.trainings, again.facts) == (
        *("any", SPACE, TRAININGS),
        {"made by": "nobody", "minutes": 1.5},
    )
    assert again._entries == table._entries
    assert [from_dict(json.loads(json.dumps(to_dict(entry))), "line") for entry in found] == found


def test_queries_need_a_length_and_keep_the_test_set_apart() -> None:
    kept = [Entry(trial(0)), Entry(trial(1, method="controller"), test=0.5), Entry(trial(0, steps=160), test=0.25)]
    failed = trial(2, value=None, failure="diverged: the loss is nan")
    table = Table("some", SPACE, TRAININGS, [*kept, Entry(failed), Entry(trial(3, training="large", steps=160))])
    assert table.trials(steps=STEPS) == [kept[0].trial, kept[1].trial, failed]
    assert table.trials(steps=STEPS, method="controller") == [kept[1].trial]
    assert table.trials(steps=STEPS, rate=0.2) == []
    apart = "no method 'controller' among trials of 160 steps of training 'small'; there method is 'random'"
    with pytest.raises(TableError, match=apart):
        table.trials(steps=160, training="small", method="controller")
    with pytest.raises(TableError, match="an integer, got '80'"):
        table.trials(steps="80")  # type: ignore[arg-type]
    assert table.trials(steps=np.int64(STEPS)) == table.trials(steps=STEPS)
    with pytest.raises(TableError, match="by that trial, got 3"):
        table.policy(3)  # type: ignore[arg-type]
    with pytest.raises(TableError, match="its name or a file's path, got 3"):
        ad.table(3)  # type: ignore[arg-type]
    assert table.test(steps=STEPS) == [(kept[1].trial, 0.5)]
    assert table.test(steps=160, training="small") == [(kept[2].trial, 0.25)]
    assert "test" not in {field.name for field in dataclasses.fields(TableTrial)}
    with pytest.raises(TypeError, match="steps"):
        table.trials()  # type: ignore[call-arg]
    with pytest.raises(TableError, match=r"no trial of 70 steps; there are some of 80 \(3\), 160 \(2\)"):
        table.trials(steps=70)
    with pytest.raises(TableError, match="several trainings; name one of 'small', 'large'"):
        table.trials(steps=160)
    with pytest.raises(TableError, match="no training 'huge'; there are 'small', 'large'"):
        table.trials(steps=160, training="huge")
    with pytest.raises(TableError, match="no phase 'proxy'; there are 'search'"):
        table.trials(steps=STEPS, phase="proxy")
    with pytest.raises(TableError, match="no method 'radnom'; there are 'random', 'controller'"):
        table.test(steps=STEPS, method="radnom")
    policy = SPACE.sample(0)
    assert table.policy(kept[0].trial) == policy
    assert table.scores(policy, steps=STEPS, rate=0.1) == {0: kept[0].trial.value}
    assert table.scores(policy, steps=STEPS, rate=0.3) == {}


def test_scores_are_those_of_all_that_do_the_same() -> None:
    """Sizes of 0 in two places: their other tokens have no effect."""
    plain, other = (3, 1, 0, 1, *(0,) * 8), (3, 1, 0, 1, 0, 2, 1, 1, *(0,) * 4)
    table = Table("some", SPACE, TRAININGS, [Entry(trial(0, tokens=plain)), Entry(trial(1, 5, tokens=other))])
    for tokens in (plain, other):
        assert set(table.scores(SPACE.decode(tokens), steps=STEPS, rate=0.1)) == {0, 5}


def test_a_trial_stopped_early_came_to_no_score() -> None:
    stopped = trial(1, tokens=trial(0).tokens, seed=5, stopped=True)
    table = Table("some", SPACE, TRAININGS, [Entry(trial(0)), Entry(stopped)])
    assert table.scores(SPACE.sample(0), steps=STEPS, rate=0.1) == {0: trial(0).value}
    assert stopped in table.trials(steps=STEPS), "with what it was credited with"


def test_a_seed_with_several_scores_needs_a_phase_or_a_method() -> None:
    again = dataclasses.replace(trial(0), phase="again", value=0.5)
    table = Table("some", SPACE, TRAININGS, [Entry(trial(0)), Entry(again)])
    policy, asked = SPACE.sample(0), {"steps": STEPS, "rate": 0.1}
    with pytest.raises(TableError, match=r"'some' has 2 scores of .* seed 0; name a phase: 'search', 'again'"):
        table.scores(policy, **asked)
    assert table.scores(policy, phase="again", **asked) == {0: 0.5}
    assert table.scores(policy, phase="search", **asked) == {0: trial(0).value}
    with pytest.raises(TableError, match="no phase 'proxy'; there are 'search', 'again'"):
        table.scores(policy, phase="proxy", **asked)
    tpe = dataclasses.replace(trial(0), method="tpe", value=0.25)
    table = Table("some", SPACE, TRAININGS, [Entry(trial(0)), Entry(tpe)])
    with pytest.raises(TableError, match="seed 0; name a method: 'random', 'tpe'"):
        table.scores(policy, phase="search", **asked)
    assert table.scores(policy, method="tpe", **asked) == {0: 0.25}
    twice = dataclasses.replace(trial(0), number=7, value=0.25)
    with pytest.raises(TableError, match="seed 0, in one phase and by one method"):
        Table("some", SPACE, TRAININGS, [Entry(trial(0)), Entry(twice)]).scores(policy, **asked)
    same = dataclasses.replace(trial(0), phase="again")
    agreed = Table("some", SPACE, TRAININGS, [Entry(trial(0)), Entry(same)]).scores(policy, **asked)
    assert agreed == {0: trial(0).value}, "they agree"


def test_a_printed_table_says_what_is_in_it() -> None:
    methods = ["none", *["random"] * 3, "dropout", "word_dropout", "tpe", "controller"]
    kept = [Entry(trial(number, method=method)) for number, method in enumerate(methods)]
    longer = [Entry(trial(0, steps=1600)), Entry(trial(1, training="large", steps=1600))]
    facts = {"scores": "80 / perplexity", "versions": {"torch": "2"}}
    head, scores, *lines = str(Table("some", SPACE, TRAININGS, kept + longer, facts)).splitlines()
    assert head == f"some: 10 trials, {SPACE.describe()}"
    assert scores == "scores: 80 / perplexity"
    assert lines == [
        "training  steps  phase   trials  methods",
        "small        80  search       8  3 random; 1 none; 1 dropout; 1 word_dropout; and 2 others",
        "small     1,600  search       1  1 random",
        "large     1,600  search       1  1 random",
    ]
    assert str(Table("empty", SPACE, TRAININGS, [])) == f"empty: 0 trials, {SPACE.describe()}"


def test_the_bundled_table_is_printed_on_a_screen_or_two() -> None:
    assert len(str(ad.table("ptb-txl")).splitlines()) < 80


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "made.parquet"
    made(40, 2).save(path)
    return path


def test_a_damaged_file_is_refused(file: Path, tmp_path: Path) -> None:
    """A byte changed anywhere, or the end cut off: an error that names the file, never another table."""
    content = file.read_bytes()
    damaged = tmp_path / "damaged.parquet"
    whole = ad.table(file)._entries
    for place in range(0, len(content), 101):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        found, said = whole, str(damaged)
        try:
            found = ad.table(damaged)._entries
        except TableError as refused:
            said = str(refused)
        assert "damaged.parquet" in said
        assert found == whole, f"byte {place} changed the content and nobody noticed"
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:length])
        with pytest.raises(TableError, match=r"damaged\.parquet is damaged, or not a Parquet file"):
            ad.table(damaged)


def test_a_flipped_bit_is_a_table_error_or_none(tmp_path: Path) -> None:
    """What reads Parquet raises much, by the byte: of the text of a head, of the names and types of columns."""
    one = Table("é", SPACE, TRAININGS, [Entry(trial(0, phase="é")), Entry(trial(1))])
    one.save(tmp_path / "one.parquet")
    content = (tmp_path / "one.parquet").read_bytes()
    for place in range(4, len(content), 3):
        damaged = content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        with suppress(TableError):
            assert Table.unpacked(damaged, "damaged")._entries == one._entries


def rewrite(source: Path, target: Path, head: dict[str, object], **columns: object) -> None:
    """The same file with another head, or another column."""
    table = pyarrow.parquet.read_table(source)
    for name, column in columns.items():
        place = table.column_names.index(name)
        if column is None:
            table = table.remove_column(place)
        else:
            table = table.set_column(
                place, table.schema.field(name), pyarrow.array(column, table.schema.field(name).type)
            )
    changed = json.loads(table.schema.metadata[HEAD]) | head
    pyarrow.parquet.write_table(table.replace_schema_metadata({HEAD: json.dumps(changed)}), target)


def test_an_edited_file_is_refused(file: Path, tmp_path: Path) -> None:
    """Valid Parquet, but not what was released."""
    edited = tmp_path / "edited.parquet"
    rewrite(file, edited, {})
    assert len(ad.table(edited)) == 80, "packed anew it is still the same table"
    values = [entry.trial.value for entry in ad.table(file)._entries]
    rewrite(file, edited, {}, value=[1.0, *values[1:]])
    with pytest.raises(TableError, match=r"edited\.parquet is damaged: its checksum is"):
        ad.table(edited)
    rewrite(file, edited, {"facts": {"better": True}})
    with pytest.raises(TableError, match="checksum"):
        ad.table(edited)
    rewrite(file, edited, {"schema": 2})
    with pytest.raises(TableError, match="is of schema 2; this autodropout reads 1"):
        ad.table(edited)
    rewrite(file, edited, {}, tokens=None)
    with pytest.raises(TableError, match="no column tokens"):
        ad.table(edited)
    rewrite(file, edited, {}, rate=[7.0] * 80)
    with pytest.raises(TableError, match=r"row 0: .*rate must lie in \[0, 1\], got 7"):
        ad.table(edited)
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), edited)
    with pytest.raises(TableError, match="not a table of trials"):
        ad.table(edited)


def test_bundled_tables_are_found_by_name(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.resources.files", lambda package: {"autodropout.tables": tmp_path}[package])
    with pytest.raises(TableError, match=r"'made' \(there are none yet\); for a file, write \./made.parquet"):
        ad.table("made")
    (tmp_path / "made.parquet").write_bytes(file.read_bytes())
    (tmp_path / "__init__.py").touch()
    assert len(ad.table("made")) == 80
    with pytest.raises(TableError, match=r"'other' \(made\)"):
        ad.table("other")
    with pytest.raises(FileNotFoundError):
        ad.table("other.parquet")


def test_every_bundled_table_opens() -> None:
    import autodropout.tables

    for path in Path(autodropout.tables.__file__).parent.glob("*.parquet"):
        assert ad.table(path.stem).name == path.stem
        assert path.stat().st_size < 2 * 2**20, "small enough for a wheel"


def test_the_bundled_table_is_that_of_the_journals() -> None:
    """Made anew after the last training: no trial of the study is missing in it, or another there."""
    folder = Path(__file__).parents[2] / "results" / "ptb"
    paths = [folder / f"{name}.jsonl" for name in JOURNALS]
    study = [entry.trial for path in paths if path.exists() for entry in Journal(path).entries]
    table = ad.table("ptb-txl")
    lengths = dict.fromkeys((trial.training, trial.steps) for trial in study)
    found = [trial for training, steps in lengths for trial in table.trials(steps=steps, training=training)]
    assert len(table) == len(study)
    assert {trial.key: trial for trial in found} == {trial.key: trial for trial in study}


def test_thousands_of_trials_are_small(tmp_path: Path) -> None:
    space = TransformerSpace()
    found = []
    for number in range(2_000):
        tokens = space.encode(space.sample(number))
        value = 0.7 + number % 97 / 1000
        curve = tuple((250 * point, value - 0.1 / point) for point in range(1, 9))
        found.append(Entry(trial(number, tokens=tokens, value=value, curve=curve)))
    Table("large", space, TRAININGS, found).save(tmp_path / "large.parquet")
    assert (tmp_path / "large.parquet").stat().st_size < 500_000


def test_what_does_not_belong_into_a_table() -> None:
    with pytest.raises(TableError, match="nothing describes the training 'small'"):
        Table("t", SPACE, {}, [Entry(trial(0))])
    with pytest.raises(TableError, match=r"tokens .* are not of a convnet space"):
        Table("t", ConvSpace(groups=((8, 8),)), TRAININGS, [Entry(trial(0))])
    with pytest.raises(TableError, match="are not of a transformer space"):
        Table("t", SPACE, TRAININGS, [Entry(dataclasses.replace(trial(0), tokens=(99, *trial(0).tokens[1:])))])
    with pytest.raises(TableError, match="stands there 2 times"):
        Table("t", SPACE, TRAININGS, [Entry(trial(0)), Entry(trial(0))])
    with pytest.raises(TableError, match="must be finite, got nan"):
        Table("t", SPACE, TRAININGS, [Entry(trial(0), float("nan"))])
    with pytest.raises(TableError, match="no journal"):
        Table.of("t", [])
    for changes, message in (
        ({"rate": 1.5}, "rate must lie"),
        ({"steps": 0, "curve": ()}, "must be positive"),
        ({"value": None}, "a value or a failure"),
        ({"failure": "crash"}, "a value or a failure"),
        ({"value": float("inf")}, "must be finite"),
        ({"method": ""}, "has a phase, a method"),
    ):
        with pytest.raises(ValueError, match=message):
            trial(0, **changes)


def test_a_table_of_several_journals(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "first.jsonl", SPACE), Journal(tmp_path / "second.jsonl", SPACE)
    for journal in (first, second):
        journal.describe("small", TRAININGS["small"])
    first.add([Entry(trial(0))])
    second.add([Entry(trial(0, phase="finalists"), test=0.5)])
    assert len(Table.of("both", [first, second])) == 2
    other = Journal(tmp_path / "other.jsonl", SPACE)
    other.describe("small", TRAININGS["large"])
    with pytest.raises(TableError, match=r"other.jsonl means another training by 'small'"):
        Table.of("all", [first, other])
    with pytest.raises(TableError, match="of another space"):
        Table.of("all", [first, Journal(tmp_path / "conv.jsonl", ConvSpace(groups=((8, 8),)))])
