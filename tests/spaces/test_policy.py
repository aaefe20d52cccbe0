"""Policies: values, moving to another resolution, provenance, and writing."""

import copy
import json
import os
import pickle
import platform
import stat

import pytest
from hypothesis import given

from autodropout.spaces import (
    TRANSFORMER_SITES,
    Cells,
    ConvGroup,
    ConvPattern,
    ConvPolicy,
    Provenance,
    SequencePattern,
    TransformerPolicy,
    load,
    parse,
    software_versions,
)

from .strategies import conv_policies, policies

NONE = ConvPattern.decode((0,) * 8)
SEQUENCE = SequencePattern(size=10, stride=5, share_t=True, share_c=False)


def conv(size, stride):
    return ConvPattern(
        size=size, stride=stride, repeat=2, share_c=True, residual=False, rotate=15, shear_x=0.1, shear_y=0
    )


EFFICIENTNET_B0 = ConvPolicy(
    resolution=(224, 224),
    groups=(
        ConvGroup(pattern=conv(1, 1), searched_at=(112, 112)),
        ConvGroup(pattern=conv(2, 2), searched_at=(56, 56)),
        ConvGroup(pattern=conv(3, 4), searched_at=(28, 28)),
        ConvGroup(pattern=conv(4, 8), searched_at=(14, 14)),
        ConvGroup(pattern=conv(1, 16), searched_at=(7, 7)),
    ),
)
TRANSFORMER = TransformerPolicy(sites={"feedforward.hidden": SEQUENCE, "attention.query": SEQUENCE})
FULL = Provenance(
    space="transformer space",
    study="mine",
    trial=7,
    score=0.5,
    model="gpt2",
    data="ptb",
    rate=0.2,
    date="2026-11-15T12:00:00+01:00",
    software={"torch": "2.14.0", "python": "3.11.7"},
    note="a\nb",
)


def test_b0_moves_to_b7_as_in_the_paper():
    moved = EFFICIENTNET_B0.at(600)
    assert [group.at for group in moved.groups] == [(300, 300), (150, 150), (75, 75), (38, 38), (19, 19)]
    assert [group.cells() for group in moved.groups] == [
        Cells(size=(60, 60), stride=(3, 3)),  # 1 * 300/112 = 2.68
        Cells(size=(60, 60), stride=(5, 5)),  # 2 * 150/56 = 5.36
        Cells(size=(45, 45), stride=(11, 11)),  # 4 * 75/28 = 10.71
        Cells(size=(28, 28), stride=(22, 22)),  # 8 * 38/14 = 21.71
        Cells(size=(3, 3), stride=(43, 43)),  # 16 * 19/7 = 43.43
    ]
    assert [group.cells().size for group in EFFICIENTNET_B0.groups] == [
        (22,) * 2,
        (22,) * 2,
        (15,) * 2,
        (8,) * 2,
        (1,) * 2,
    ]
    assert [group.pattern for group in moved.groups] == [group.pattern for group in EFFICIENTNET_B0.groups]
    assert moved.resolution == (224, 224)
    assert moved != EFFICIENTNET_B0


def test_moving_per_axis():
    moved = EFFICIENTNET_B0.at((112, 448))
    assert [group.at for group in moved.groups] == [(56, 224), (28, 112), (14, 56), (7, 28), (4, 14)]
    assert moved.groups[4].cells() == Cells(size=(0, 2), stride=(9, 32))
    assert EFFICIENTNET_B0.at(1).groups[4].at == (1, 1)


@given(conv_policies)
def test_moving_back_loses_nothing(policy):
    if policy.resolution is None:
        with pytest.raises(ValueError, match="does not record the resolution"):
            policy.at(224)
        return
    home = policy.at(policy.resolution)
    assert all(group.at == group.searched_at for group in home.groups)
    small = (max(1, policy.resolution[0] // 3), max(1, policy.resolution[1] // 7))
    assert home.at(small).at(policy.resolution) == home
    assert policy.at(small) == home.at(small)
    assert policy.at(small).provenance == policy.provenance


@pytest.mark.parametrize("resolution", [0, -1, True, 2.5, "224", (224,), (224, 0), None, 2**21])
def test_a_resolution_is_one_or_two_positive_integers(resolution):
    with pytest.raises(ValueError, match="is not a pair"):
        EFFICIENTNET_B0.at(resolution)


def test_a_move_beyond_every_real_map_is_refused():
    tiny = ConvPolicy(resolution=(1, 1), groups=(ConvGroup(pattern=NONE, searched_at=(64, 64)),))
    with pytest.raises(ValueError, match="is not a pair"):
        tiny.at(2**20)


def test_a_transformer_policy_has_no_resolution():
    with pytest.raises(ValueError, match="cannot move a transformer policy to resolution 224"):
        TRANSFORMER.at(224)


@pytest.mark.parametrize("policy", [EFFICIENTNET_B0, TRANSFORMER], ids=lambda policy: policy.kind)
def test_policies_are_immutable(policy):
    with pytest.raises(ValueError, match="frozen"):
        policy.provenance = FULL
    with pytest.raises(ValueError, match="frozen"):
        policy.kind = "other"


def test_sites_and_software_are_immutable():
    for mapping in (TRANSFORMER.sites, FULL.software):
        name = next(iter(mapping))
        with pytest.raises(TypeError):
            mapping[name] = mapping[name]
        with pytest.raises(TypeError):
            del mapping[name]
        with pytest.raises(AttributeError):
            mapping.pairs = ()


def test_later_changes_of_the_arguments_do_not_reach_the_policy():
    sites = {"attention.key": SEQUENCE}
    policy = TransformerPolicy(sites=sites)
    sites["attention.value"] = SEQUENCE
    assert policy.sites == {"attention.key": SEQUENCE}


def test_sites_are_a_mapping_in_canonical_order():
    assert list(TRANSFORMER.sites) == ["attention.query", "feedforward.hidden"]
    assert TRANSFORMER.sites["attention.query"] == SEQUENCE
    assert "attention.key" not in TRANSFORMER.sites
    with pytest.raises(KeyError, match="key"):
        TRANSFORMER.sites["attention.key"]
    full = TransformerPolicy(sites=dict.fromkeys(reversed(TRANSFORMER_SITES), SEQUENCE))
    assert tuple(full.sites) == TRANSFORMER_SITES
    assert TransformerPolicy(sites=full.sites) == full


@given(policies)
def test_policies_are_values(policy):
    for again in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert again == policy
        assert hash(again) == hash(policy)
    assert {policy: "found"}[parse(policy.to_json())] == "found"


def test_provenance_counts_in_comparison():
    noted = TransformerPolicy(sites=TRANSFORMER.sites, provenance=FULL)
    assert noted != TRANSFORMER
    assert noted == TransformerPolicy(sites=TRANSFORMER.sites, provenance=FULL)


@pytest.mark.parametrize("build", [lambda: ConvPolicy(groups=()), lambda: TransformerPolicy(sites={})])
def test_an_empty_policy_is_refused(build):
    with pytest.raises(ValueError, match="at least one"):
        build()


def test_two_groups_of_one_size_are_refused():
    group = ConvGroup(pattern=NONE, searched_at=(7, 7))
    with pytest.raises(ValueError, match="group1 and group3 have the same size, 7x7"):
        ConvPolicy(groups=(group, ConvGroup(pattern=NONE, searched_at=(5, 5)), group))


def test_a_group_is_used_where_it_was_searched_unless_told():
    assert ConvGroup(pattern=NONE, searched_at=(7, 9)).at == (7, 9)
    assert ConvGroup(pattern=NONE, searched_at=(7, 9), at=(3, 4)).at == (3, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trial", -1),
        ("trial", True),
        ("trial", 1.0),
        ("trial", 2**63),
        ("score", float("nan")),
        ("score", float("inf")),
        ("score", "0.5"),
        ("score", True),
        ("score", 10**400),
        ("rate", 1.01),
        ("rate", -0.1),
        ("rate", float("nan")),
        ("date", "yesterday"),
        ("date", "2026-02-30"),
        ("date", "2026-11-15 12:00"),
        ("date", "20261115"),
        ("date", "2026-11-15\n"),
        ("date", "2026-11-15T25:00"),
        ("software", {"torch": 2}),
        ("software", ["torch"]),
        ("study", 3),
        ("note", "\ud800"),
        ("author", "me"),
    ],
)
def test_provenance_refuses(field, value):
    with pytest.raises(ValueError, match=field):
        Provenance(**{field: value})


@pytest.mark.parametrize(
    "date", ["2026-11-15", "2026-11-15T12:30", "2026-11-15T12:30:01.5Z", "2026-11-15T12:30:01-05:00"]
)
def test_provenance_accepts_dates(date):
    assert Provenance(date=date).date == date


def test_software_versions_name_python_and_are_a_provenance():
    versions = software_versions()
    assert versions["python"] == platform.python_version()
    assert set(versions) <= {"python", "autodropout", "torch"}
    assert Provenance(software=versions).software == versions


@given(policies)
def test_json_round_trips(policy):
    text = policy.to_json()
    assert parse(text) == policy
    assert parse(text).to_json() == text
    assert next(iter(json.loads(text))) == "schema"


def test_the_json_form_is_stable():
    policy = TransformerPolicy(
        sites=TRANSFORMER.sites, provenance=Provenance(trial=7, score=0.5, software=FULL.software)
    )
    assert (
        policy.to_json()
        == """\
{
  "schema": 1,
  "kind": "transformer",
  "sites": {
    "attention.query": {"size": 10, "stride": 5, "share_t": true, "share_c": false},
    "feedforward.hidden": {"size": 10, "stride": 5, "share_t": true, "share_c": false}
  },
  "provenance": {
    "trial": 7,
    "score": 0.5,
    "software": {"python": "3.11.7", "torch": "2.14.0"}
  }
}
"""
    )
    policy = ConvPolicy(resolution=(32, 48), groups=(ConvGroup(pattern=conv(1, 2), searched_at=(8, 12)),))
    pattern = (
        '{"size": 1, "stride": 2, "repeat": 2, "share_c": true, "residual": false, '
        '"rotate": 15, "shear_x": 0.1, "shear_y": 0.0}'
    )
    assert policy.to_json().splitlines() == [
        "{",
        '  "schema": 1,',
        '  "kind": "convnet",',
        '  "resolution": [32, 48],',
        '  "groups": [',
        "    {",
        f'      "pattern": {pattern},',
        '      "searched_at": [8, 12],',
        '      "at": [8, 12]',
        "    }",
        "  ]",
        "}",
    ]


def test_the_summary_has_a_line_per_place():
    moved = ConvPolicy(resolution=(224, 224), groups=EFFICIENTNET_B0.groups[:1]).at(600)
    assert str(moved) == (
        "convnet policy, 1 group, searched at 224x224\n"
        "  group1  300x300 (searched at 112x112)  size=1 stride=1 repeat=2 share_c rotate=15 shear_x=0.1 shear_y=0.0"
        " = 60x60 cells, gaps 3x3"
    )
    assert len(str(EFFICIENTNET_B0).splitlines()) == 1 + 5
    nothing = ConvPolicy(groups=(ConvGroup(pattern=NONE, searched_at=(7, 9)),))
    assert nothing.summary() == "convnet policy, 1 group\n  group1  7x9  none"
    assert str(TRANSFORMER) == (
        "transformer policy, 2 sites\n"
        "  attention.query     size=10 stride=5 share_t\n"
        "  feedforward.hidden  size=10 stride=5 share_t"
    )


def test_the_summary_lets_no_control_sequence_through():
    policy = TransformerPolicy(sites=TRANSFORMER.sites, provenance=Provenance(note="\x1b[2J\nsite"))
    assert "\x1b" not in str(policy)
    assert str(policy).splitlines()[-1] == "  note: '\\x1b[2J\\nsite'"


def test_saved_and_loaded_policies_are_equal(tmp_path):
    policy = TransformerPolicy(sites=TRANSFORMER.sites, provenance=FULL)
    path = tmp_path / "mine.json"
    policy.save(path)
    assert load(path) == load(str(path)) == policy
    EFFICIENTNET_B0.save(str(path))  # over an existing file
    assert load(path) == EFFICIENTNET_B0
    assert os.listdir(tmp_path) == ["mine.json"]


@pytest.mark.skipif(os.name != "posix", reason="permissions as on POSIX")
def test_a_saved_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    TRANSFORMER.save(tmp_path / "policy.json")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "policy.json")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("call", ["os.fsync", "os.replace"])
@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call, failure):
    path = tmp_path / "policy.json"
    TRANSFORMER.save(path)
    before = path.read_bytes()

    def fail(*arguments):
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(call, fail)
        with pytest.raises(type(failure)):
            EFFICIENTNET_B0.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["policy.json"]


def test_saving_into_a_missing_folder_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        TRANSFORMER.save(tmp_path / "absent" / "policy.json")
    assert os.listdir(tmp_path) == []


def test_saving_to_what_is_no_path():
    with pytest.raises(TypeError, match=r"^save wants the path of a file, got 3$"):
        TRANSFORMER.save(3)


def test_nothing_is_saved_that_could_not_be_loaded(tmp_path):
    policy = TransformerPolicy(sites=TRANSFORMER.sites, provenance=Provenance(note="x" * 2**20))
    with pytest.raises(ValueError, match="more than 1048576"):
        policy.save(tmp_path / "policy.json")
    assert os.listdir(tmp_path) == []
