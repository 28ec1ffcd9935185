//! Metrics in Prometheus's text format, version 0.0.4.
//!
//! Written by hand: the existing libraries would add ten crates, for nothing else that is needed
//! here.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper ends of the histograms' buckets, in seconds.
const BUCKETS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 300.0,
];

/// Vector of counters; those beyond the end are zero.
#[derive(Debug, Default)]
pub(super) struct CounterVec(Mutex<Vec<u64>>);

impl CounterVec {
    /// Adds to one counter.
    pub fn add(&self, index: usize, count: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() <= index {
            counts.resize(index + 1, 0);
        }
        counts[index] += count;
    }

    /// Sum of all counters.
    pub fn sum(&self) -> u64 {
        self.all().into_iter().sum()
    }

    /// All counters.
    pub fn all(&self) -> Vec<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Histogram of durations.
#[derive(Debug, Default)]
pub(super) struct DurationHistogram {
    /// Counts by bucket; the last is for durations above all ends.
    counts: [AtomicU64; BUCKETS.len() + 1],
    /// Sum of the durations, in nanoseconds.
    sum: AtomicU64,
}

impl DurationHistogram {
    /// Adds a duration.
    pub fn add(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.counts[BUCKETS.partition_point(|end| *end < seconds)].fetch_add(1, Relaxed);
        self.sum.fetch_add(duration.as_nanos() as u64, Relaxed);
    }
}

/// Type of a metric.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// All samples of a model under one name.
#[derive(Debug)]
pub(super) struct Family {
    /// Prefix and rest of the name.
    name: (&'static str, &'static str),
    kind: Kind,
    help: &'static str,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// Suffix of the name.
    suffix: &'static str,
    label: Option<(&'static str, String)>,
    value: f64,
}

impl Family {
    /// Creates a family without samples.
    pub fn new(name: (&'static str, &'static str), kind: Kind, help: &'static str) -> Self {
        Self { name, kind, help, samples: Vec::new() }
    }

    /// Adds a sample with this value.
    pub fn value(mut self, value: f64) -> Self {
        self.samples.push(Sample { suffix: "", label: None, value });
        self
    }

    /// Adds samples by the value of a label.
    pub fn labelled(
        mut self,
        label: &'static str,
        counts: impl Iterator<Item = (String, u64)>,
    ) -> Self {
        self.samples.extend(counts.map(|(value, count)| Sample {
            suffix: "",
            label: Some((label, value)),
            value: count as f64,
        }));
        self
    }

    /// Adds the samples of a histogram, with cumulative buckets.
    pub fn histogram(mut self, times: &DurationHistogram) -> Self {
        let ends = BUCKETS.map(|end| end.to_string()).into_iter().chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (end, bucket) in ends.zip(&times.counts) {
            count += bucket.load(Relaxed);
            let label = Some(("le", end));
            self.samples.push(Sample { suffix: "_bucket", label, value: count as f64 });
        }
        let sum = times.sum.load(Relaxed) as f64 / 1e9;
        self.samples.push(Sample { suffix: "_sum", label: None, value: sum });
        self.samples.push(Sample { suffix: "_count", label: None, value: count as f64 });
        self
    }
}

/// Renders the families of all models, which have the same names. With several models each sample
/// has the model's label.
pub(super) fn render(models: &[(Option<&str>, Vec<Family>)]) -> String {
    let mut text = String::new();
    let Some((_, first)) = models.first() else { return text };
    for (index, Family { name: (prefix, name), kind, help, .. }) in first.iter().enumerate() {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
        for (model, families) in models {
            for Sample { suffix, label, value } in &families[index].samples {
                let model = model.map(|model| ("model_name", model));
                let label = label.as_ref().map(|(name, value)| (*name, value.as_str()));
                let labels: Vec<String> = model
                    .into_iter()
                    .chain(label)
                    .map(|(name, value)| label_pair(name, value))
                    .collect();
                let labels = match labels.is_empty() {
                    true => String::new(),
                    false => format!("{{{}}}", labels.join(",")),
                };
                let _ = writeln!(text, "{prefix}{name}{suffix}{labels} {value}");
            }
        }
    }
    text
}

/// Formats a label and its value.
fn label_pair(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_prometheus_text_format() {
        let (times, counts) = (DurationHistogram::default(), CounterVec::default());
        for millis in [1, 2, 400_000] {
            times.add(Duration::from_millis(millis));
        }
        counts.add(1, 7);
        let families = || {
            vec![
                Family::new(("a:", "seconds"), Kind::Histogram, "Seconds").histogram(&times),
                Family::new(("a:", "load"), Kind::Gauge, "Load").value(0.5),
                Family::new(("b:", "total"), Kind::Counter, "By position").labelled(
                    "place",
                    counts.all().into_iter().enumerate().map(|(k, n)| (k.to_string(), n)),
                ),
            ]
        };
        let text = render(&[(None, families())]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["# HELP a:seconds Seconds", "# TYPE a:seconds histogram"]);
        // A bucket includes its end.
        assert_eq!(
            lines[2..4],
            ["a:seconds_bucket{le=\"0.001\"} 1", "a:seconds_bucket{le=\"0.0025\"} 2"]
        );
        assert_eq!(
            lines[19..],
            [
                "a:seconds_bucket{le=\"300\"} 2",
                "a:seconds_bucket{le=\"+Inf\"} 3",
                "a:seconds_sum 400.003",
                "a:seconds_count 3",
                "# HELP a:load Load",
                "# TYPE a:load gauge",
                "a:load 0.5",
                "# HELP b:total By position",
                "# TYPE b:total counter",
                "b:total{place=\"0\"} 0",
                "b:total{place=\"1\"} 7",
            ]
        );
        let text = render(&[(Some("x\"\\"), families()), (Some("y"), families())]);
        assert_eq!(text.lines().filter(|line| line.starts_with('#')).count(), 6);
        for line in [
            r#"a:load{model_name="x\"\\"} 0.5"#,
            r#"a:load{model_name="y"} 0.5"#,
            r#"b:total{model_name="y",place="1"} 7"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
