"""A store of many runs, for measuring what a large one costs: the committed rows, again and again with other seeds.

    python benchmarks/large_store.py large.db --rows 100000

The first rows are those of `results/`, so that claims have what they need; the others are as many more, with seeds that
no study asks for, each with the curves and probes of the row it repeats. They go straight into the tables: what `add`
checks, row by row, would take minutes.
"""

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
OTHER_SEEDS = 10_000  # beyond what studies and trials use


def fill(path, rows=100_000, results=RESULTS):
    """Create the store at `path` with that many rows."""
    from headwise.store.records import POINTS, RUN_COLUMNS
    from headwise.store.store import Store

    with Store.from_files(results) as known, Store(path) as store:
        originals = known._select()
        points = {
            table: {
                row["key"]: known._query(f"SELECT step, name, value FROM {table} WHERE key = ?", row["key"])
                for row in originals
            }
            for table in POINTS
        }
        connection = store._connection
        connection.execute("BEGIN")
        for number in range(rows):
            copy, original = divmod(number, len(originals))
            record = _again(originals[original], copy)
            values = [record[name] for name in RUN_COLUMNS]
            connection.execute(
                f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({', '.join('?' * len(values))})", values
            )
            for table, of in points.items():
                some = [(record["key"], *point) for point in of[originals[original]["key"]]]
                connection.executemany(f"INSERT INTO {table} (key, step, name, value) VALUES (?, ?, ?, ?)", some)
        connection.execute("COMMIT")
    return path


def _again(record, copy):
    """The record itself, or as another seed would have given it."""
    from headwise.training.run import Run

    if not copy:
        return record
    spec = json.loads(record["spec"])
    spec["seed"] += OTHER_SEEDS * copy
    return record | {"spec": json.dumps(spec), "key": Run(**spec).key}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    print(fill(options.path, options.rows))


if __name__ == "__main__":
    main()
