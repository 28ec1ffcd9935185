"""The part of docs/benchmarks.md about draft heads."""


def curve(page):
    records = page.of("head-curve")
    if not records:
        return
    page.add("## A draft head as it learns")
    page.paragraph(
        "Acceptance of the first to the fourth drafted token on samples that the head never learned"
        " from, against tokens learned, each time counted. See [the page](train-a-head.md)."
    )
    for record in records:
        page.source(record)
        if record.data["note"]:
            page.paragraph(record.data["note"])
        rows = []
        for point in record.data["points"]:
            shares = [
                " ".join(f"{share:.3f}" for share in point[name])
                for name in ("acceptance", "greedy")
            ]
            rows.append((f"{point['tokens']:,}", f"{point['written']:,}", point["loss"], *shares))
        page.table(["learned", "written", "taught", "accepted at T = 1", "at T = 0"], rows)
