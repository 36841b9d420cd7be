"""From raw event files to a model, its audit and its stream.

One text file a stay, as PhysioNet's Challenge 2012 has them: lines `Time,Parameter,Value`. The files are those in
`ANYORDER_DATA/icu` (the packed set a, written out as text first) or generated. Run: python examples/event_files.py
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import anyorder as ao

STAYS, EPOCHS = (2000, 20) if os.environ.get("ANYORDER_DATA") else (300, 10)


def write_files(folder: Path) -> None:
    """The raw files: STAY.txt with the events of a stay, outcomes.csv with what became of the patients."""
    packed = Path(os.environ.get("ANYORDER_DATA", "none")) / "icu" / "physionet2012_set_a.npz"
    if packed.exists():
        data = np.load(packed)
        stay = np.repeat(data["record_id"], data["events_per_patient"])
        minute, value, name = data["minute"], data["value"], data["parameter_names"][data["parameter"]]
        outcomes = {"stay": data["record_id"], "age": data["static"][:, 0], "died": data["outcomes"][:, 4]}
    else:  # readings at whole hours, several at each; who is old and has a fast heart is in danger
        draws = np.random.default_rng(0)
        stay = np.repeat(np.arange(STAYS), 24)
        minute = 60 * np.sort(draws.integers(0, 8, (STAYS, 24)), axis=1).ravel()
        name = draws.choice(["HR", "Temp", "GCS"], len(stay))
        heart, age = draws.normal(85, 15, STAYS), draws.integers(30, 90, STAYS)
        value = np.select([name == "HR", name == "Temp"], [heart[stay], 37.0], 14.0) + draws.normal(size=len(stay))
        outcomes = {"stay": np.arange(STAYS), "age": age, "died": heart + age > 150}
    events = pd.DataFrame({"Time": [f"{m // 60:02}:{m % 60:02}" for m in minute], "Parameter": name, "Value": value})
    for number, rows in list(events.groupby(stay))[:STAYS]:
        rows.to_csv(folder / f"{number}.txt", index=False)
    pd.DataFrame(outcomes).astype({"died": bool}).to_csv(folder / "outcomes.csv", index=False)


def read_files(folder: Path) -> pd.DataFrame:
    """One long table: a row an event, with the stay, its minute, and what is known of the stay as a whole."""
    parts = {int(path.stem): pd.read_csv(path) for path in sorted(folder.glob("*.txt"))}
    events = pd.concat(parts, names=["stay"]).reset_index("stay")
    hours, minutes = events.pop("Time").str.split(":", expand=True).astype(int).to_numpy().T
    events["minute"] = 60 * hours + minutes
    return events.merge(pd.read_csv(folder / "outcomes.csv"), on="stay")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_files(folder)
    events = read_files(folder)

columns = {"set_id": "stay", "time": "minute", "name": "Parameter", "value": "Value", "static": ["age"]}
stays = events["stay"].unique()
new = events["stay"].isin(stays[-len(stays) // 5 :])  # the last fifth is for the audit and the stream

model = ao.TableModel(epochs=EPOCHS)
model.fit(events[~new], target="died", **columns, say=print)
print(
    "\nnew stays:", {name: round(figure, 3) for name, figure in model.evaluate(events[new]).items() if "ci" not in name}
)

print("\nwhat matters:")
print(model.importance(events[new], repeats=1).round(3).to_string(index=False))

report = model.audit(events[new], sets=50, orderings=8, search=20)  # reorders what was recorded in the same minute
print(f"\naudit: {report}")

network = ao.TableModel(pooled=False, yardstick=False, epochs=EPOCHS)  # reads one event at a time: a stream
network.fit(events[~new], target="died", **columns)
one = events[events["stay"] == stays[-1]].sort_values("minute", kind="stable")
stream = network.stream()
print("\nstay", stays[-1], "as its events arrive:")
for minute, rows in one.groupby("minute"):
    stream.update(rows)
    risk = float(stream.value({"age": one["age"].iloc[0]})[1])
    if minute % 120 == 0:
        print(f"  minute {minute:4}: probability of death {risk:.2f}")
