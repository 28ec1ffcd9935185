"""Tables of what `published.py` found. No script of its own."""


def table(record):
    """Lines of text."""
    lines = []
    for row in record.get("checks", []):
        lines.append(
            ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )
    cells = {}
    for row in record.get("model", []):
        if "rate" in row:
            cells.setdefault((row["kind"], row["batch"], row["temperature"]), []).append(row)
    for cell, rows in cells.items():
        plain = next(
            row["rate"] for row in rows if row["how"].startswith("plain")
        ) if len(rows) > 1 else None
        lines.append("{}, batch size {}, T = {}".format(*cell))
        for row in rows:
            times = f"{row['rate'] / plain:.2f}" if plain else ""
            tokens = f"{row['efficiency']:.2f} tokens a pass" if row.get("efficiency") else ""
            lines.append(f"  {row['how']:36} {row['rate']:8.0f} tokens/s {times:>6} {tokens}")
    for row in record.get("large", []):
        parts = " ".join(f"{k} {row[k]:.2f} ms" for k in ("whole", "target", "draft") if k in row)
        lines.append(f"8B shape, batch size {row['batch']}: {row['how']:24} {parts}")
    return "\n".join([*lines, *record.get("errors", [])])
