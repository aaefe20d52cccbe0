"""Reading policies: every way a file can be wrong, what the message says, and texts nobody foresaw."""

import copy
import importlib.resources
import json
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autodropout.spaces import (
    ConvPolicy,
    ConvSpace,
    PolicyError,
    Provenance,
    TransformerPolicy,
    TransformerSpace,
    load,
    parse,
)

from .strategies import policies

CONV = json.loads(ConvSpace(groups=((8, 8), (4, 4)), resolution=(32, 32)).sample(0).to_json())
TRANSFORMER = json.loads(TransformerSpace(sites=("attention.query",)).decode([1] * 4, Provenance(trial=1)).to_json())
SITE = TRANSFORMER["sites"]["attention.query"]
MISSING = object()


def changed(data, path, value):
    """A deep copy with the value at `path` replaced, or removed where the new one is MISSING."""
    data = copy.deepcopy(data)
    *parents, last = path
    place = data
    for part in parents:
        place = place[part]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return data


def problems(text):
    with pytest.raises(PolicyError) as refused:
        parse(text, source="some.json")
    assert str(refused.value).startswith("some.json: ")
    return refused.value.problems


def test_what_the_tests_below_change_is_valid():
    assert isinstance(parse(json.dumps(CONV)), ConvPolicy)
    assert isinstance(parse(json.dumps(TRANSFORMER)), TransformerPolicy)


A_PAIR = "a pair [height, width] of integers in 1..1048576"
CONV_NAMES = "size, stride, repeat, share_c, residual, rotate, shear_x, shear_y"
PROVENANCE_NAMES = "space, study, trial, score, model, data, rate, date, software, note"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (["schema"], 2, "schema: this file is schema 2; this autodropout reads 1"),
        (["schema"], True, "schema: this file is schema True; this autodropout reads 1"),
        (["schema"], 1.0, "schema: this file is schema 1.0; this autodropout reads 1"),
        (["schema"], "1", "schema: this file is schema '1'; this autodropout reads 1"),
        (["schema"], MISSING, "schema: missing; this autodropout reads 1"),
        (["kind"], "mlp", "kind: 'mlp' is not one of 'convnet', 'transformer'"),
        (["kind"], ["convnet"], "kind: ['convnet'] is not one of 'convnet', 'transformer'"),
        (["kind"], MISSING, "kind: missing; it must be one of 'convnet', 'transformer'"),
        (["group"], 3, "group: unknown key (its value is 3); the keys here are schema, kind, resolution, groups, prov"),
        (["groups"], [], "groups: no group; there must be at least one"),
        (["groups"], {}, "groups: {} is not an array"),
        (["groups"], MISSING, "groups: missing"),
        (["groups", 0], 7, "groups[0]: 7 is not an object"),
        (
            ["groups", 0, "x"],
            [],
            "groups[0].x: unknown key (its value is []); the keys here are pattern, searched_at, at",
        ),
        (["groups", 0, "at"], [8, 0], f"groups[0].at: [8, 0] is not {A_PAIR}"),
        (["groups", 0, "searched_at"], [8], f"groups[0].searched_at: [8] is not {A_PAIR}"),
        (["groups", 0, "searched_at"], MISSING, "groups[0].searched_at: missing"),
        (["groups", 1, "searched_at"], [8, 8], "groups: group1 and group2 have the same size, 8x8"),
        (["groups", 0, "pattern"], None, "groups[0].pattern: None is not an object"),
        (["groups", 0, "pattern", "stride"], MISSING, "groups[0].pattern.stride: missing"),
        (["groups", 1, "pattern", "stride"], 3, "groups[1].pattern.stride: 3 is not one of 1, 2, 4, 8, 16"),
        (
            ["groups", 1, "pattern", "size"],
            True,
            "groups[1].pattern.size: True (bool) is not one of 0, 1, 2, 3, 4 (int)",
        ),
        (["groups", 1, "pattern", "size"], "2", "groups[1].pattern.size: '2' (str) is not one of 0, 1, 2, 3, 4 (int)"),
        (
            ["groups", 0, "pattern", "shear_x"],
            0.07,
            "groups[0].pattern.shear_x: 0.07 is not one of 0.0, 0.05, 0.1, ..., ",
        ),
        (
            ["groups", 0, "pattern", "x"],
            2,
            f"groups[0].pattern.x: unknown key (its value is 2); the keys here are {CONV_NAMES}",
        ),
        (["resolution"], 224, f"resolution: 224 is not {A_PAIR}"),
    ],
)
def test_each_problem_of_a_convnet_policy_is_named_by_path_value_and_what_was_allowed(path, value, problem):
    (found,) = problems(json.dumps(changed(CONV, path, value)))
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (["groups"], [], "groups: unknown key (its value is []); the keys here are schema, kind, sites, provenance"),
        (["sites"], [], "sites: [] is not an object"),
        (["sites"], {}, "sites: no site; name at least one of attention.query, attention.key, "),
        (
            ["sites", "query"],
            SITE,
            "sites.query: 'query' is not a site; the sites are attention.query, attention.key, ",
        ),
        (["sites", "attention.query"], 1, "sites['attention.query']: 1 is not an object"),
        (
            ["sites", "attention.query", "size"],
            15,
            "sites['attention.query'].size: 15 is not one of 0, 10, 20, 30, 40, ",
        ),
        (
            ["sites", "attention.query", "x"],
            1,
            "sites['attention.query'].x: unknown key (its value is 1); the keys here ",
        ),
        (["provenance"], "mine", "provenance: 'mine' is not an object"),
        (["provenance", "trial"], -1, "provenance.trial: -1: Input should be greater than or equal to 0"),
        (["provenance", "trial"], 1.5, "provenance.trial: 1.5 is not an integer"),
        (["provenance", "score"], "high", "provenance.score: 'high' is not a number"),
        (["provenance", "rate"], 1.5, "provenance.rate: 1.5: Input should be less than or equal to 1"),
        (["provenance", "note"], 3, "provenance.note: 3 is not a string"),
        (["provenance", "note"], "\ud800", "provenance.note: '\\ud800' is not valid Unicode"),
        (
            ["provenance", "date"],
            "2026-02-30",
            "provenance.date: '2026-02-30' is not an ISO 8601 date or time such as ",
        ),
        (["provenance", "software"], {"torch": 2}, "provenance.software.torch: 2 is not a string"),
        (["provenance", "x"], 0, f"provenance.x: unknown key (its value is 0); the keys here are {PROVENANCE_NAMES}"),
    ],
)
def test_each_problem_of_a_transformer_policy_is_named_by_path_value_and_what_was_allowed(path, value, problem):
    (found,) = problems(json.dumps(changed(TRANSFORMER, path, value)))
    assert found.startswith(problem)


@pytest.mark.parametrize("data", [[CONV], None, 3, "policy"])
def test_what_is_not_an_object(data):
    (problem,) = problems(json.dumps(data))
    assert problem.startswith("a policy is a JSON object, this is ")


def test_all_problems_are_listed_at_once():
    data = changed(CONV, ["groups", 1, "pattern", "stride"], 3)
    data = changed(data, ["groups", 0, "at"], "large")
    data = changed(data, ["resolution"], [0, 0])
    data = changed(data, ["provenance"], {"trial": "seven"})
    assert [problem.split(": ")[0] for problem in problems(json.dumps(data))] == [
        "resolution",
        "groups[0].at",
        "groups[1].pattern.stride",
        "provenance.trial",
    ]
    with pytest.raises(PolicyError, match=r"some.json: 4 problems\n  - resolution: .*\n  - groups\[0\].at: "):
        parse(json.dumps(data), source="some.json")


def test_keys_named_like_fields_elsewhere_do_not_confuse_the_paths():
    assert problems(json.dumps(changed(TRANSFORMER, ["sites"], {"size": {**SITE, "sites": 1}}))) == (
        problems(json.dumps(changed(TRANSFORMER, ["sites"], {"size": SITE})))[0],
        "sites.size.sites: unknown key (its value is 1); the keys here are size, stride, share_t, share_c",
    )
    assert problems(json.dumps(changed(TRANSFORMER, ["provenance", "[key]"], 1))) == (
        f"provenance['[key]']: unknown key (its value is 1); the keys here are {PROVENANCE_NAMES}",
    )


def test_a_long_list_of_problems_is_cut_in_the_message_only():
    with pytest.raises(PolicyError) as refused:
        parse(json.dumps(changed(CONV, ["groups"], [0] * 1000)))
    assert len(refused.value.problems) == 1000
    assert len(str(refused.value).splitlines()) == 22
    assert str(refused.value).endswith("and 980 more")


def test_a_long_value_is_cut_in_the_message():
    (problem,) = problems(json.dumps(changed(CONV, ["groups", 0, "pattern", "size"], "x" * 10_000)))
    assert len(problem) < 300
    (problem,) = problems(json.dumps(changed(CONV, ["y" * 10_000], 1)))
    assert len(problem) < 300


def test_duplicated_keys_are_refused_where_they_stand():
    text = json.dumps(CONV).replace('"share_c": true', '"share_c": true, "share_c": true', 1)
    assert problems(text) == ("groups[0].pattern.share_c: this key stands more than once",)
    text = json.dumps(TRANSFORMER)
    assert problems(text.replace('"kind"', '"kind": "convnet", "kind"')) == ("kind: this key stands more than once",)
    repeated = text.replace('"sites": {', '"sites": {"attention.query": {}, "a b": {}, ')
    assert problems(repeated)[0] == "sites['attention.query']: this key stands more than once"


@pytest.mark.parametrize(
    ("number", "shown"), [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), ("1e999", "inf")]
)
def test_numbers_must_be_finite_anywhere(number, shown):
    text = json.dumps(TRANSFORMER).replace('"trial": 1', f'"trial": 1, "score": {number}')
    assert problems(text) == (f"provenance.score: {shown} is not a finite number",)
    text = json.dumps(CONV).replace('"shear_y": 0.5', f'"shear_y": {number}', 1)
    assert problems(text) == (f"groups[0].pattern.shear_y: {shown} is not a finite number",)


@pytest.mark.parametrize(
    "text", ["", "{", "{'schema': 1}", "\ufeff{}", json.dumps(CONV) + "x", "9" * 5000, '{"a": 01}']
)
def test_texts_that_are_not_json(text):
    (problem,) = problems(text)
    assert problem.startswith("not valid JSON: ")


def test_deep_nesting_is_refused():
    assert problems("[" * 400_000) == ("not a policy: the JSON is nested too deeply",)
    assert problems('{"a":' * 200_000) == ("not a policy: the JSON is nested too deeply",)
    deep = json.dumps(CONV)[:-1] + ', "provenance": ' + "[" * 300 + "]" * 300 + "}"
    assert problems(deep) == (
        "provenance" + "[0]" * 16 + ": nested more than 16 levels deep",
        "provenance: [[[[[[[...]]]]]]] is not an object",
    )


def test_policy_errors_are_value_errors_that_travel_between_processes():
    error = PolicyError("a.json", ("first", "second"))
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.source, again.problems) == ("a.json: 2 problems\n  - first\n  - second", *error.args)


def test_a_large_file_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**20 + 1)
    monkeypatch.setattr("pathlib.Path.open", lambda *_: pytest.fail("the file was opened"))
    with pytest.raises(PolicyError, match=r"large\.json: the file has 1048577 bytes, more than 1048576"):
        load(path)


def test_a_text_of_the_largest_size_is_read(tmp_path):
    text = json.dumps(CONV)
    path = tmp_path / "padded.json"
    path.write_text(text + " " * (2**20 - len(text)))
    assert load(path) == parse(text)
    with pytest.raises(PolicyError, match="longer than 1048576"):
        parse(text + " " * 2**20)


def test_a_file_that_is_not_utf_8(tmp_path):
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"note": "caf\xe9"}')
    with pytest.raises(PolicyError, match=r"latin\.json: not UTF-8: byte 0xe9 at offset 13"):
        load(path)


def test_what_is_not_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.json") as missing:
        load(tmp_path / "absent.json")
    assert missing.value.filename == str(tmp_path / "absent.json")
    with pytest.raises(PolicyError, match="not a regular file"):
        load(tmp_path)


@pytest.mark.parametrize("path", [3, None, b"mine.json", TransformerPolicy(sites={"attention.query": SITE})])
def test_what_is_no_path(path):
    with pytest.raises(TypeError, match=r"^ad\.load wants the name of a bundled policy or the path of a file, got "):
        load(path)


def test_the_message_names_the_file(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(changed(CONV, ["kind"], "mlp")))
    with pytest.raises(PolicyError) as refused:
        load(path)
    assert str(refused.value) == f"{path}: kind: 'mlp' is not one of 'convnet', 'transformer'"


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A folder that stands for the package's policies."""
    monkeypatch.setattr("importlib.resources.files", lambda package: {"autodropout.policies": tmp_path}[package])
    return tmp_path


def test_a_bare_name_is_a_bundled_policy(bundle, monkeypatch):
    policy = parse(json.dumps(CONV))
    policy.save(bundle / "wrn-28-10.json")
    policy.save(bundle / "resnet50.json")
    (bundle / "__init__.py").touch()
    assert load("resnet50") == policy
    with pytest.raises(
        FileNotFoundError, match=r"No such file \(policies .* by name: resnet50, wrn-28-10\): 'mine.json'"
    ):
        load("mine.json")
    with pytest.raises(
        PolicyError, match=r"vgg: no bundled policy .*\(resnet50, wrn-28-10\); for a file, write \./vgg"
    ):
        load("vgg")
    monkeypatch.chdir(bundle)
    (bundle / "plain").write_text(json.dumps(TRANSFORMER))
    assert load("./plain").kind == "transformer"
    assert load("resnet50.json") == policy  # a file, by its suffix


@pytest.mark.parametrize("name", ["", ".", "..", "__init__", "resnet50.JSON"])
def test_other_bare_names_are_refused(bundle, name):
    with pytest.raises(PolicyError, match="there are none yet"):
        load(name)


def test_every_bundled_policy_loads():
    names = sorted(
        entry.name
        for entry in importlib.resources.files("autodropout.policies").iterdir()
        if entry.name.endswith(".json")
    )
    with pytest.raises(PolicyError) as refused:
        load("no such policy")
    for name in names:
        assert name.removesuffix(".json") in str(refused.value)
        load(name.removesuffix(".json"))


def read(text):
    """Whatever the text is: a policy or a PolicyError that can be printed, never anything else."""
    try:
        policy = parse(text)
    except PolicyError as error:
        str(error).encode()
    else:
        assert parse(policy.to_json()) == policy


@st.composite
def mutated(draw):
    text = draw(policies).to_json()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 3))
        text = text[:at] + draw(st.text(max_size=3) | st.sampled_from('{}[],:"\\019.-eE tfn')) + text[at + length :]
    return text


@given(mutated())
def test_mutated_policies_are_read_or_refused(text):
    read(text)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8)
keys = st.sampled_from(
    ["schema", "kind", "groups", "sites", "provenance", "pattern", "size", "at", "software", "attention.key", "[key]"]
)
trees = st.recursive(
    scalars | st.sampled_from([1, "convnet", "transformer", [8, 8], 10**30]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | st.text(max_size=3), inner, max_size=6),
)


@given(trees)
def test_any_json_is_read_or_refused(tree):
    read(json.dumps(tree))


@given(st.sampled_from([CONV, TRANSFORMER]), st.data())
def test_a_policy_with_one_part_replaced_is_read_or_refused(data, draws):
    path, place = [], data
    while isinstance(place, dict | list) and place and draws.draw(st.booleans() if path else st.just(True)):
        part = draws.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        path.append(part)
        place = place[part]
    read(json.dumps(changed(data, path, draws.draw(trees))))


@given(st.text(st.characters(codec=None)))
@example('{"schema": 1, "kind": "convnet", "\\ud800": 1}')
@example('{"schema": 1, "kind": "transformer", "sites": {"\\udfff": {"\\ud800": 1}}}')
@example('{"schema": 1, "kind": "convnet", "provenance": {"score": 1' + "0" * 400 + "}}")
def test_any_text_is_read_or_refused(text):
    read(text)
