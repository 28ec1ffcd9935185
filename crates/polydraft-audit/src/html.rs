//! The report as an HTML page.

use crate::report::{Finding, Report, Verdict, format_p_value, format_percent};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
    padding:0 1rem;color:#1b1f24;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem}\
    table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;\
    padding:.4rem .6rem;border-bottom:1px solid #d0d7de}.passed{color:#116329}\
    .fault{color:#a40e26;font-weight:600}.ignored,.not-enough-data,.not-applicable{color:#59636e}\
    pre{white-space:pre-wrap;word-break:break-all;background:#f6f8fa;padding:.7rem;\
    border-radius:6px;font-size:.85rem}dt{font-weight:600}dd{margin:0 0 .5rem}\
    h1,dd,td{overflow-wrap:anywhere}@media(max-width:40rem){.checks{overflow-x:auto}\
    .checks td:last-child{min-width:14rem}td,th{overflow-wrap:normal;padding:.3rem}}\
    @media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}\
    pre{background:#161b22}td,th{border-color:#30363d}.passed{color:#3fb950}\
    .fault{color:#ff7b72}.ignored,.not-enough-data,.not-applicable{color:#9198a1}}";

/// Formats a report as a self-contained page.
pub fn page(report: &Report) -> String {
    let summary = match report.verdict {
        Verdict::Passed => "Lossless as far as tested",
        Verdict::Fault => "Not lossless",
        _ => "Not enough data",
    };
    let title = escaped(&format!("{summary}: {} on {}", report.model, report.url));
    let rows: String = report.findings.iter().map(row).collect();
    let evidence: String = report.findings.iter().map(shown).collect();
    let facts = [
        ("Server", report.server.clone()),
        ("Truth", report.truth.clone()),
        ("Speculation", report.speculation.clone()),
        (
            "Error rate",
            format!(
                "a lossless server fails in at most {} of all audits, over all checks",
                report.error_rate
            ),
        ),
        (
            "Created",
            format!(
                "polydraft {}, {} requests in {:.0} s, {}, seed {}",
                report.version,
                report.requests,
                report.seconds,
                day_and_time(report.date),
                report.seed
            ),
        ),
    ];
    let cut = report.cut_short.iter().map(|why| ("Cut short", why.clone()));
    let facts: String = facts
        .into_iter()
        .chain(cut)
        .map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", escaped(&text)))
        .collect();
    let class = class(report.verdict);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\
         <h1 class=\"{class}\">{title}</h1><dl>{facts}</dl>\
         <h2>Checks</h2><div class=\"checks\"><table><tr><th>check</th><th>verdict</th><th>p</th>\
         <th>would find</th><th>count</th><th>observation</th></tr>{rows}</table></div>{evidence}\
         <p>p: the probability of as much evidence against a lossless server, however long one \
         looks. Would find: the smallest error, in total variation at every token, that this check \
         would have found in 19 of 20 audits.</p></body></html>\n"
    )
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Fault => "fault",
        Verdict::Ignored => "ignored",
        Verdict::NotEnoughData => "not-enough-data",
        Verdict::NotApplicable => "not-applicable",
    }
}

fn row(finding: &Finding) -> String {
    let outcome = &finding.outcome;
    let p = outcome.p_value.map_or("–".to_owned(), format_p_value);
    let find = outcome.would_find.map_or("–".to_owned(), format_percent);
    let class = class(outcome.verdict);
    format!(
        "<tr><td>{}</td><td class=\"{class}\">{}</td><td>{p}</td><td>{find}</td><td>{}</td>\
         <td>{}</td></tr>",
        escaped(&finding.title),
        class.replace('-', " "),
        outcome.seen,
        escaped(&outcome.summary)
    )
}

fn shown(finding: &Finding) -> String {
    if finding.outcome.evidence.is_empty() {
        return String::new();
    }
    let evidence = finding.outcome.evidence.iter().map(|evidence| {
        format!("<p>{}</p><pre>{}</pre>", escaped(&evidence.what), escaped(&evidence.curl))
    });
    format!("<h2>{}</h2>{}", escaped(&finding.title), evidence.collect::<String>())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A time in seconds since 1970, as people write it.
fn day_and_time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}
