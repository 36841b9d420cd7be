"""TableModel: a table's whole way, the yardstick beside it, and what it warns of."""

from __future__ import annotations

import dataclasses
import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import anyorder as ao
from anyorder.checks import InputError
from anyorder.estimators.metrics import difference, metrics_of
from anyorder.estimators.tables import TableWarning, read_table
from anyorder.estimators.yardstick import pooled

COLUMNS = {"set_id": "stay", "target": "died", "time": "minute", "name": "what", "value": "value", "static": ["age"]}


def stays(sets=80, seed=0):
    """Readings at whole minutes, many at the same one; who is old and has a fast heart dies."""
    rng = np.random.default_rng(seed)
    stay = np.repeat(np.arange(sets), rng.integers(3, 9, sets))
    rows = pd.DataFrame({"stay": stay, "minute": rng.integers(0, 4, len(stay))})
    rows["what"] = rng.choice(["HR", "Temp"], len(stay))
    base = rng.normal(80, 10, sets)
    rows["value"] = np.where(rows["what"] == "HR", base[stay], 37) + rng.normal(0, 1, len(stay)).round(1)
    rows["age"] = rng.integers(30, 90, sets)[stay]
    rows["died"] = np.where(base[stay] + rows["age"] > 140, "yes", "no")
    return rows


def another_order(rows, seed=1):
    """The same events: rows of one stay and minute stand in another order."""
    return rows.sample(frac=1, random_state=seed).sort_values(["stay", "minute"], kind="stable")


@pytest.fixture(scope="module")
def fitted():
    return ao.TableModel(epochs=25, learning_rate=0.01).fit(stays(200), **COLUMNS)


@pytest.fixture(scope="module")
def streamed():
    rows = stays(60).sort_values(["stay", "minute"], kind="stable")
    return ao.TableModel(epochs=3, pooled=False, yardstick=False, tie_within=1).fit(rows, **COLUMNS)


def test_it_learns_and_its_figures_are_those_of_its_predictions(fitted):
    rows = stays(100, seed=1)
    frame, figures = fitted.predict(rows), fitted.evaluate(rows)
    truth = rows.groupby("stay")["died"].first()
    assert list(frame) == ["stay", "prediction", "probability_no", "probability_yes"]
    assert figures["accuracy"] == pytest.approx((frame.set_index("stay")["prediction"] == truth).mean())
    assert figures["auc"] > 0.85
    for name in ("accuracy", "auc", "log_loss", "average_precision"):
        low, high = figures[f"{name}_ci"]
        assert low <= figures[name] <= high
        assert high - low < 0.5


def test_the_sets_held_out_are_used_for_the_figures_alone():
    """Their targets may be anything: the weights do not change."""
    draws = np.random.default_rng(0)
    rows = pd.DataFrame({"set": np.arange(12) // 2, "x": draws.normal(size=12), "sum": np.repeat(draws.random(6), 2)})

    def weights(table):
        options = {"epochs": 1, "test_fraction": 0.5, "validation_fraction": 0, "ensemble": False, "yardstick": False}
        model = ao.TableModel(**options).fit(table, set_id="set", target="sum")
        assert model.held_out["sets"] == 3
        return torch.cat([p.flatten() for p in model.estimator.model_.parameters()])

    given = weights(rows)
    others = [weights(rows.assign(sum=rows["sum"] + 5 * (rows["set"] == number))) for number in range(6)]
    assert sum(torch.equal(other, given) for other in others) == 3


def test_a_column_may_say_which_sets_are_held_out_and_what_they_weigh():
    """A set that is held out, or has no weight, may have any target: the weights do not change."""
    draws = np.random.default_rng(0)
    rows = pd.DataFrame({"set": np.arange(24) // 2, "x": draws.normal(size=24)})
    rows["y"] = np.where(rows["set"] % 2, "a", "b")
    rows["day"] = [f"2024-01-{20 - number:02}" for number in rows["set"]]  # the first sets are the latest
    rows["ward"], rows["weight"] = rows["set"] % 4, (rows["set"] != 5).astype(float)

    def weights(table, **columns):
        options = {
            "epochs": 1,
            "test_fraction": 0.25,
            "validation_fraction": 0.25,
            "ensemble": False,
            "yardstick": False,
        }
        model = ao.TableModel(**options, features=["x"]).fit(table, set_id="set", target="y", **columns)
        return torch.cat([p.flatten() for p in model.estimator.model_.parameters()])

    def others_do_not_matter(sets, **columns):
        changed = rows["y"].where(~rows["set"].isin(sets), rows["y"].map({"a": "b", "b": "a"}))
        return torch.equal(weights(rows.assign(y=changed), **columns), weights(rows, **columns))

    by_day = {"validation_by": "day", "weight": "weight"}
    assert others_do_not_matter(range(6), **by_day)
    assert not others_do_not_matter([6], **by_day)
    wards = [ward for ward in range(4) if others_do_not_matter([ward], validation_by="ward")]
    assert len(wards) == 2
    with pytest.raises(InputError, match="three groups"):
        weights(rows.assign(ward=1), validation_by="ward")


def test_the_yardstick_stands_beside_it_and_says_when_it_is_ahead(fitted):
    assert fitted.held_out["sets"] == 30
    assert fitted.held_out["metrics"]["pooled boosting"]["auc"] > 0.8
    poor = ao.TableModel(epochs=1, learning_rate=1e-6, ensemble=False).fit(stays(200), **COLUMNS)
    assert "pooled features with boosting are ahead" in poor.summary()[-1]


def test_a_difference_is_paired():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    noisy = truth + rng.normal(size=200)
    name, (low, high) = difference("regression", truth, noisy, noisy + 0.02)
    assert name == "rmse"
    assert high - low < 0.02  # the two hardly differ, far as both are from the truth
    assert difference("regression", truth, truth, noisy)[1][0] > 0.5
    assert metrics_of("regression", truth, noisy)["rmse"] == pytest.approx(np.sqrt(np.mean((noisy - truth) ** 2)))


def test_pooled_statistics_do_not_tell_the_order_within_ties():
    rows = stays(30)
    table = read_table(rows, **COLUMNS)
    first, other = table.data, table.schema.read(another_order(rows)).data
    assert not torch.equal(first.elements, other.elements)
    np.testing.assert_allclose(pooled(first, table.schema), pooled(other, table.schema), rtol=1e-9)
    ends = rows[(rows["stay"] == 0) & (rows["what"] == "HR")].groupby("minute")["value"].mean()
    found = pooled(first, table.schema)[0]
    mean, scale = table.schema.features[0].units[0]
    expected = (ends.iloc[-1] - mean) / scale
    assert np.isclose(found, expected, atol=1e-5).any()  # the last one, a mean over its tie


def test_a_table_without_times_has_no_first_and_no_last():
    rows = stays(30).drop(columns="minute")
    columns = {name: column for name, column in COLUMNS.items() if name != "time"}
    table = read_table(rows, **columns)
    shuffled = table.schema.read(rows.sample(frac=1, random_state=0).sort_values("stay", kind="stable")).data
    np.testing.assert_allclose(pooled(shuffled, table.schema), pooled(table.data, table.schema), rtol=1e-9)


def test_the_audit_reorders_rows_within_ties_alone(fitted):
    rows = stays(60, seed=2)
    report = fitted.audit(rows, orderings=8, search=20)
    assert report.order_gap < 0.05
    assert "noticeably" not in report.verdict().headline
    moved = [
        np.abs(fitted.predict(another_order(rows, seed)).set_index("stay")["probability_yes"]
               - fitted.predict(rows).set_index("stay")["probability_yes"]).mean() for seed in range(8)
    ]  # fmt: skip
    assert 0.4 * np.mean(moved) < report.output_gap < 2.5 * np.mean(moved) + 1e-6
    assert "= " in str(report.worst[0].elements[0, 0])
    apart = rows.assign(minute=rows.groupby("stay").cumcount())
    assert fitted.audit(apart, orderings=3, search=20).output_gap < 1e-6  # no two rows share a time


def test_what_matters_comes_first(fitted):
    rows = stays(150, seed=3)
    found = fitted.importance(rows)
    assert set(found["feature"]) == {"what", "minute", "age"}
    assert found["feature"].iloc[-1] == "minute"  # the target does not depend on it
    assert found["log_loss_increase"].iloc[0] > 0.1


def test_statistics_that_are_alike_in_training_say_nothing_of_a_set_where_they_are_not():
    """All sets have the same times, so the weights of the mean time and of the latest one learn nothing."""
    draws = np.random.default_rng(0)
    rows = pd.DataFrame({"set": np.arange(240) // 4, "x": draws.normal(size=240), "at": np.tile([0, 0, 1, 300], 60)})
    rows["up"] = np.where(rows.groupby("set")["x"].transform("sum") > 0, "yes", "no")
    options = {"epochs": 4, "ensemble": False, "yardstick": False, "model_options": {"cell": "gru"}}
    model = ao.TableModel(**options, test_fraction=0).fit(rows, set_id="set", target="up", time="at")
    model.estimator.model_.inner.recurrence.module.weight_ih_l0.data.zero_()  # what is left are the statistics
    later = rows.assign(at=1000 * rows["at"])
    pd.testing.assert_frame_equal(model.predict(later), model.predict(rows))


def test_leaving_a_row_out_moves_the_output_as_a_table_without_it_does(fitted):
    rows = stays(30, seed=3)
    found = fitted.left_out(rows, sets=4, rows=2)
    assert found.groupby("stay").size().tolist() == [2] * 4
    assert found["change"].is_monotonic_decreasing
    stay, what, change = found.iloc[0]
    name, value = what.split(" = ")
    here = rows[rows["stay"] == stay]
    left = (here["what"] == name) & np.isclose(here["value"], float(value), rtol=1e-3)
    given, moved = (fitted.predict(part)["probability_yes"][0] for part in (here, here[~left]))
    assert abs(given - moved) == pytest.approx(change, rel=1e-3)
    assert {*fitted.audit(rows, orderings=2, search=0).left_out} == {"HR", "Temp"}
    assert fitted.audit(rows.groupby("stay").head(1), orderings=2).left_out is None


def test_a_stream_gives_what_the_whole_set_gives(streamed):
    rows = stays(30, seed=4).sort_values(["stay", "minute"], kind="stable")
    expected = streamed.predict(rows).set_index("stay")["probability_yes"]
    for stay, part in list(rows.groupby("stay"))[:6]:
        for size in (1, 2, len(part)):
            stream = streamed.stream()
            for begin in range(0, len(part), size):
                stream.update(part.iloc[begin : begin + size])
            value = stream.value({"age": part["age"].iloc[0]})
            assert float(value[1]) == pytest.approx(expected[stay], abs=1e-5)
    stream.update({"minute": [9], "what": ["HR"], "value": [80.0]})
    with pytest.raises(InputError, match="'minute'"):
        stream.update({"minute": [5], "what": ["HR"], "value": [80.0]})
    with pytest.raises(TypeError, match="age"):
        stream.value()


def test_it_is_stored_in_a_folder_that_runs_no_code(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded, rows = ao.TableModel.load(tmp_path / "model"), stays(20, seed=5)
    pd.testing.assert_frame_equal(loaded.predict(rows), fitted.predict(rows))
    assert loaded.summary() == fitted.summary()
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors", "log.jsonl"}
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["preprocessing"]["pooled"] is True


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_several_targets_have_columns_and_metrics_of_their_own(task, tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"set": np.arange(450) // 3, "x": rng.normal(size=450), "z": rng.normal(size=450)})
    sums = rows.groupby("set")[["x", "z"]].transform("sum")
    rows["a"], rows["b"] = (sums["x"], 100 * sums["z"]) if task == "regression" else (sums["x"] > 0, sums["z"] > 1)
    rows = rows.astype({"a": float, "b": float})
    options = {"epochs": 15, "learning_rate": 0.01, "test_fraction": 0.15 if task == "regression" else 0}
    model = ao.TableModel(task=task, **options).fit(rows, set_id="set", target=["a", "b"])
    model.save(tmp_path / "m")
    shown, figures = ao.TableModel.load(tmp_path / "m").predict(rows), model.evaluate(rows)
    truth = rows.groupby("set")[["a", "b"]].first().to_numpy()
    assert list(shown) == [
        "set",
        "prediction_a",
        "prediction_b",
        *["probability_a", "probability_b"] * (task[0] == "c"),
    ]
    found = shown[["prediction_a", "prediction_b"]].to_numpy()
    if task == "regression":
        assert figures["rmse of b"] == pytest.approx(np.sqrt(np.mean((found - truth)[:, 1] ** 2)))
        assert figures["r2 of a"] > 0.8
    else:
        assert figures["accuracy of b"] == pytest.approx((found == truth)[:, 1].mean())
        assert figures["auc of a"] > 0.95
    assert {*model.held_out.get("yardstick", figures)} == {*figures}
    assert model.importance(rows, repeats=1).iloc[:, 1].min() > 0.02


# What goes wrong without a word ------------------------------------------------------------------------------------

BASKETS = pd.DataFrame({"basket": np.arange(120) // 3, "kind": ["pen", "book", "lamp"] * 40})
BASKETS["price"] = np.random.default_rng(0).gamma(2, 5, 120).round(2)
BASKETS["big"] = np.where(BASKETS.groupby("basket")["price"].transform("sum") > 30, "yes", "no")
TRAPS = {
    "wild": (lambda t: t.assign(price=t["price"].where(t.index != 7, 1e30)), "price: 1e.30 in row 8 .*correct"),
    "decimal comma": (lambda t: t.assign(cost=t["price"].astype(str).str.replace(".", ",")), "cost: .*decimal comma"),
    "dates": (lambda t: t.assign(at=pd.date_range("2024-01-01", periods=120).astype(str)), "at: .*look like dates"),
    "names": (lambda t: t.assign(who=[f"n{i}" for i in range(120)]), "who: .*120 categories for 120 rows"),
    "row number": (lambda t: t.assign(row=range(120)), "row: .*counts the rows.*leave it out"),
    "doubled": (lambda t: pd.concat([t, t]), "120 rows are copies .*row 121; drop"),
    "one set": (lambda t: t.assign(big=t["big"].where(t["basket"] > 0, "once")), "class 'once' of 'big' has one set"),
}


@pytest.mark.parametrize("case", TRAPS)
def test_a_training_table_that_is_probably_wrong_is_told(case):
    damage, match = TRAPS[case]
    assert read_table(BASKETS, set_id="basket", target="big").notes == []
    with pytest.warns(TableWarning, match=match) as told:
        ao.TableModel(epochs=1, ensemble=False, yardstick=False).fit(damage(BASKETS), set_id="basket", target="big")
    assert all("\n" not in str(warning.message) for warning in told)


def test_a_new_table_that_is_unlike_the_training_table_is_told():
    model = ao.TableModel(epochs=1, ensemble=False, yardstick=False).fit(BASKETS, set_id="basket", target="big")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(BASKETS)
    with pytest.warns(TableWarning, match=r"price: .*check the unit"):
        model.predict(BASKETS.assign(price=100 * BASKETS["price"]))
    with pytest.warns(TableWarning, match=r"kind: 120 rows .*no row has a known one"):
        model.predict(BASKETS.assign(kind=BASKETS["kind"].str.upper()))


REFUSED = {
    "diverged": (lambda: ao.TableModel(learning_rate=100.0, epochs=3, clip=None), {}, "lower the learning rate"),
    "option": (lambda: ao.TableModel(learning_rat=1.0), {}, "did you mean 'learning_rate'"),
    "model option": (lambda: ao.TableModel(model_options={"hiden": 8}), {}, "did you mean 'hidden'"),
    "no target": (ao.TableModel, {"target": []}, "target must name a column"),
    "column": (ao.TableModel, {"target": "bigg"}, "did you mean 'big'"),
    "named like a prediction": (ao.TableModel, {"set_id": "prediction"}, "'prediction' has the name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    make, columns, match = REFUSED[case]
    rows = BASKETS.assign(prediction=BASKETS["basket"]) if "set_id" in columns else BASKETS
    with pytest.raises(InputError, match=match) as refused:
        make().fit(rows, **{"set_id": "basket", "target": "big", **columns})
    assert "--" not in str(refused.value)


def test_what_needs_a_fit_or_the_target_says_so(fitted):
    with pytest.raises(InputError, match="fit"):
        ao.TableModel().predict(BASKETS)
    with pytest.raises(InputError, match="'died'"):
        fitted.evaluate(stays(5).drop(columns="died"))
    with pytest.raises(InputError, match="pooled=False"):
        fitted.stream()
    assert dataclasses.is_dataclass(fitted.schema)


def test_a_training_that_begins_badly_and_goes_on_is_kept():
    """A sum over 400 elements begins far off."""
    draws = np.random.default_rng(0)
    rows = pd.DataFrame({"set": np.arange(16_000) // 400, "x": draws.normal(size=16_000)})
    rows["up"] = np.where(rows.groupby("set")["x"].transform("sum") > 0, "yes", "no")
    model = ao.TableModel(model="deepsets", epochs=2, learning_rate=3e-5, pooled=False, yardstick=False)
    assert len(model.fit(rows, set_id="set", target="up").predict(rows)) == 40
