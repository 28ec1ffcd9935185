//! Speculation counters of servers, in Prometheus' format.

use crate::client::Client;

/// Speculation counters.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counters {
    drafts: f64,
    drafted: f64,
    accepted: f64,
}

impl Counters {
    /// Reads the current counters; `None` if the server has none.
    pub fn read(client: &Client) -> Option<Self> {
        Self::parse(&client.get("/metrics").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let sum = |endings: &[&str]| {
            let mut found = None;
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let name = name.strip_suffix("_total").unwrap_or(name);
                if !endings.iter().any(|ending| name.ends_with(ending)) {
                    continue;
                }
                let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
                found = Some(found.unwrap_or(0.0) + value.unwrap_or(0.0));
            }
            found
        };
        Some(Self {
            drafts: sum(&["spec_decode_num_drafts", "polydraft_drafts"])?,
            drafted: sum(&["spec_decode_num_draft_tokens", "polydraft_draft_tokens"])?,
            accepted: sum(&["spec_decode_num_accepted_tokens", "polydraft_accepted_tokens"])?,
        })
    }
}

/// Summarises the change between two readings, or the counts in answers.
pub fn summary(
    before: Option<Counters>,
    after: Option<Counters>,
    (drafted, accepted): (u64, u64),
) -> String {
    if let (Some(before), Some(after)) = (before, after) {
        let (drafts, drafted) = (after.drafts - before.drafts, after.drafted - before.drafted);
        let accepted = after.accepted - before.accepted;
        if drafted > 0.0 {
            return format!(
                "the server drafted: {:.2} of its draft tokens were accepted, {:.2} tokens were \
                 emitted per pass",
                accepted / drafted,
                1.0 + accepted / drafts.max(1.0)
            );
        }
        return "the server drafted nothing, according to its metrics".to_owned();
    }
    match drafted {
        0 => "the server does not report whether it drafted".to_owned(),
        drafted => format!(
            "the server drafted: {:.2} of its draft tokens were accepted",
            accepted as f64 / drafted as f64
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_counters_over_models() {
        let text = "# HELP vllm:spec_decode_num_drafts_total x\n\
            vllm:spec_decode_num_drafts_total{model=\"a\"} 10.0\n\
            vllm:spec_decode_num_drafts_total{model=\"b\"} 5\n\
            vllm:spec_decode_num_draft_tokens_total{model=\"a\"} 30.0\n\
            vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 9.0\n\
            vllm:spec_decode_num_accepted_tokens_total{model=\"a\"} 12.0\n";
        let counters = Counters { drafts: 15.0, drafted: 30.0, accepted: 12.0 };
        assert_eq!(Counters::parse(text), Some(counters));
        assert_eq!(Counters::parse("up 1"), None);
    }
}
