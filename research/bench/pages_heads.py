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


def trained(page):
    """Heads that learned on a GPU."""
    records = page.of("head-training")
    if not records:
        return
    page.add("## Draft heads trained on a GPU")
    page.paragraph(
        "SmolLM2 writes text in batches of 1,024; heads of one and of two decoder layers learn"
        " from the same batches."
        " Acceptance is of the first to the fourth drafted token at T = 1, on the samples that"
        " were kept for validation"
        " on a CPU too. See [the page](train-a-head.md)."
    )
    for record in records:
        data = record.data
        page.source(record, data["command"])
        first, last = data["runs"][0], data["runs"][-1]
        writing, before = first["writing"], 0
        page.paragraph(
            f"{writing['tokens']:,} tokens in {writing['texts']:,} samples were written in"
            f" {writing['seconds']:.0f} s"
            f" ({writing['drawn'] / writing['seconds']:,.0f} tokens/s); 8,192 tokens of the"
            " vocabulary are"
            f" {100 * writing['said_by_8192']:.1f} % of them, 16,384"
            f" {100 * writing['said_by_16384']:.1f} %. Learning:"
            f" {first['learning']['tokens'] / first['learning']['seconds']:,.0f} tokens/s with"
            " both heads,"
            f" {last['learning']['tokens'] / last['learning']['seconds']:,.0f} with one. The head"
            " that was shipped before"
            f" accepts {said(first['old'])}. In the second run the head of one layer goes on"
            " learning."
        )
        rows = []
        for number, run in enumerate(data["runs"]):
            # The last point is said twice.
            for point in run["curve"][:-1] if number == 0 else run["curve"]:
                cells = [
                    said(point[name]) if (name := f"layers_{count}") in point else ""
                    for count in (1, 2)
                ]
                rows.append(
                    (f"{before + point['tokens']:,}", point["loss"], f"{point['rate']:.4f}", *cells)
                )
            before += run["learning"]["tokens"]
        page.table(["learned", "taught", "rate", "one layer", "two layers"], rows)


def said(figures):
    return " ".join(f"{share:.3f}" for share in figures["acceptance"])
