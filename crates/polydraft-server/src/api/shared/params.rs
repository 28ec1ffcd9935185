//! Parameters of both completions and conversations: sampling, limits, speculation.

use std::collections::BTreeMap;

use polydraft::{Sampling, Token};
use polydraft_engine::{AllowedTokens, Alternatives, Limits, Penalties, RepetitionPenalty};
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;

use super::answer::StreamUsage;
use super::error::Problem;
use super::speculation;
use super::timings::TimingOptions;
use super::values::{Limit, OneOrMany, flag_or_false};
use crate::worker::RequestParams;
use crate::{Defaults, LoadedModel};

/// Parameters of every sequence.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Common {
    /// Name of the model, as listed by `/v1/models`. Default: the first one.
    pub model: Option<String>,
    /// Divisor of the logits; 0 always takes the likeliest token.
    pub temperature: Option<f64>,
    /// Keeps the likeliest tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Keeps this many of the likeliest tokens; 0 or -1 for all.
    pub top_k: Option<i64>,
    /// Keeps tokens with at least this fraction of the likeliest token's probability.
    pub min_p: Option<f64>,
    /// Values added to the logits of tokens, by id, from -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Ids of the only tokens that may be sampled.
    pub allowed_token_ids: Option<Vec<Token>>,
    /// Ids of tokens whose log-probabilities are listed with every token, instead of the likeliest.
    pub logprob_token_ids: Option<Vec<Token>>,
    /// Maximum tokens of the prompt; a longer one is truncated. -1 leaves room for the output.
    pub truncate_prompt_tokens: Option<i64>,
    /// Side at which the prompt is truncated: `"left"` (the start) or `"right"`. Default: left.
    pub truncation_side: Option<String>,
    /// Subtracted from a token's logit for each time that it was generated, from -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Subtracted from a token's logit if it was generated, from -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Divides positive logits and multiplies negative logits of tokens in the prompt or the
    /// output, from 0.01 to 100; 1 has no effect. Alias: repeat_penalty.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    /// Number of last tokens to which repetition_penalty applies; -1 for all.
    pub repeat_last_n: Option<i64>,
    /// Seed of all random decisions: the same seed gives the same output, independent of other
    /// requests.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Number>,
    /// Sequences for each prompt. Default: 1.
    pub n: Option<usize>,
    /// Strings that end the output and are not part of it.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop: Option<OneOrMany<String>>,
    /// Token ids that end the output, in addition to the model's end tokens.
    pub stop_token_ids: Option<Vec<Token>>,
    /// Whether to continue after end tokens; stop_token_ids still end the output.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub ignore_eos: bool,
    /// Minimum tokens of the output: until then no end token and none of stop_token_ids is
    /// possible.
    pub min_tokens: Option<usize>,
    /// Whether to stream the output.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub stream: bool,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// End user: accepted without effect.
    pub user: Option<String>,
    /// Newer name of `user`, for policy checks: no effect.
    #[serde(rename = "safety_identifier")]
    pub _safety_identifier: Option<String>,
    /// Newer name of `user`, for caching: no effect, because prompts with a common prefix share
    /// their cache in any case.
    #[serde(rename = "prompt_cache_key")]
    pub _prompt_cache_key: Option<String>,
    /// Metadata of the client: accepted, but not stored.
    pub metadata: Option<BTreeMap<String, String>>,
    /// `"none"`, or `{"verifier": .., "tree": .., "draft": ..}`. Default: the server's setting.
    #[schema(value_type = Option<Object>)]
    pub speculation: Option<Value>,
    /// `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema":
    /// {"name": .., "schema": ..}}`.
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// Form of the output, one of `{"json": schema}`, `{"json_object": true}`, `{"regex": ..}`,
    /// `{"choice": [..]}` and `{"grammar": ..}` in Lark's notation or in GBNF. Equivalent to the
    /// older parameters guided_json, guided_regex, guided_choice and guided_grammar, and
    /// llama.cpp's json_schema and grammar.
    #[schema(value_type = Option<Object>)]
    pub structured_outputs: Option<Value>,
    /// Sends the engine's steps with every chunk of a stream, with this many of the likeliest
    /// tokens of each distribution, from 1 to 16.
    pub steps: Option<usize>,
    /// Whether a stream reports the progress of the prefill, as llama.cpp's `prompt_progress`.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub return_progress: bool,
    /// Whether the answer and every chunk of a stream have llama.cpp's `timings`.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub timings_per_token: bool,
    /// All other parameters.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether to send a last chunk with the usage.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub include_usage: bool,
    /// Whether to pad chunks to one length, so that observers of encrypted traffic learn less: not
    /// supported.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub include_obfuscation: bool,
    /// Whether every chunk has the usage so far; needs include_usage.
    #[serde(default, deserialize_with = "flag_or_false")]
    pub continuous_usage_stats: bool,
}

impl StreamOptions {
    /// Chunks that report the usage.
    pub fn usage(&self) -> StreamUsage {
        match (self.include_usage, self.continuous_usage_stats) {
            (false, _) => StreamUsage::Never,
            (true, false) => StreamUsage::LastChunk,
            (true, true) => StreamUsage::EveryChunk,
        }
    }

    /// Whether all options are off.
    pub fn is_neutral(&self) -> bool {
        !self.include_usage && !self.include_obfuscation
    }
}

/// Checks that a parameter is in a range.
pub fn check_range(param: &str, value: usize, min: usize, max: usize) -> Result<usize, Problem> {
    match (min..=max).contains(&value) {
        true => Ok(value),
        false => Err(Problem::invalid(format_args!(
            "{param}: expected from {min} to {max}, got {value}"
        ))
        .with_param(param)),
    }
}

/// Side at which prompts are truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Truncation of long prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Maximum tokens; `None` leaves room for the output.
    max: Option<usize>,
    side: Side,
}

impl Truncation {
    /// Truncates a prompt, before an output of at most `max_tokens`.
    pub fn truncate(self, prompt: &mut Vec<Token>, context: usize, max_tokens: Option<usize>) {
        let available = context.saturating_sub(max_tokens.unwrap_or(1).max(1)).max(1);
        let (length, max) = (prompt.len(), self.max.unwrap_or(available));
        match self.side {
            Side::Left => drop(prompt.drain(..length.saturating_sub(max))),
            Side::Right => prompt.truncate(max),
        }
    }
}

/// Checks that the ids are in the vocabulary.
fn check_token_ids<'a>(
    param: &str,
    listed: &'a [Token],
    vocabulary: usize,
) -> Result<&'a [Token], Problem> {
    match listed.iter().find(|token| **token as usize >= vocabulary) {
        None => Ok(listed),
        Some(got) => {
            let problem = format!(
                "{param}: token id {got} is out of vocabulary: expected ids below {vocabulary}"
            );
            Err(Problem::invalid(problem).with_param(param))
        }
    }
}

/// Maximum number of stop strings, and bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Maximum number of token ids in `stop_token_ids` and in `logprob_token_ids`.
const MAX_LISTED_IDS: usize = 256;

impl Common {
    /// Converts to parameters for the engine. The prompt and the grammar are set later.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn request_params(
        &self,
        model: &LoadedModel,
        defaults: &Defaults,
        max_tokens: Option<Limit>,
    ) -> Result<RequestParams, Problem> {
        if let Some(options) = &self.stream_options {
            if !self.stream {
                let problem = Problem::invalid("stream_options needs stream");
                return Err(problem.with_param("stream_options"));
            }
            if options.include_obfuscation {
                let problem =
                    Problem::invalid("stream_options.include_obfuscation is not supported");
                return Err(problem
                    .with_param("stream_options.include_obfuscation")
                    .with_code("unsupported_parameter"));
            }
        }
        let default_sampling = defaults.sampling_for(self.gives_sampling());
        let sampling = self.sampling(default_sampling.target())?;
        sampling.validate()?;
        let settings = speculation::resolve(
            model,
            self.speculation.as_ref(),
            default_sampling.draft_with_target(sampling),
        )?;
        let count = check_range("n", self.n.unwrap_or(1), 1, model.limits.sequences)?;
        let speculation = settings
            .map(|settings| speculation::build(model, settings, self.seed.is_some(), count));
        let stop = self.stop.clone().map_or_else(|| defaults.stop.clone(), OneOrMany::into_vec);
        check_range("stop", stop.len(), 0, MAX_STOPS)?;
        if let Some(invalid) =
            stop.iter().find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES)
        {
            let expected = format!(
                "stop: expected strings of 1 to {MAX_STOP_BYTES} bytes, got one of {}",
                invalid.len()
            );
            return Err(Problem::invalid(expected).with_param("stop"));
        }
        Ok(RequestParams {
            prompt: Vec::new(),
            sampling,
            penalties: self.penalties(model.vocabulary)?,
            allowed: self.allowed(model.vocabulary)?,
            min_tokens: self.min_tokens.unwrap_or(0),
            grammar: None,
            thinking: None,
            speculation: speculation.transpose()?,
            limits: Limits {
                max_tokens: max_tokens.unwrap_or(defaults.max_tokens),
                end_tokens: self.end_tokens(model.vocabulary, defaults)?,
                stop,
                stop_outside: None,
            },
            seed: self.seed()?.unwrap_or_else(polydraft_runtime::random),
            seeded: self.seed.is_some(),
            visible_special_tokens: Vec::new(),
            count,
            scores: self.scores(model.vocabulary)?,
            prompt_scores: None,
            progress: self.timing_options().needs_progress(),
            traces: self.traces()?,
        })
    }

    /// Whether to report progress and timings.
    pub fn timing_options(&self) -> TimingOptions {
        TimingOptions {
            progress: self.stream && self.return_progress,
            timings: self.timings_per_token,
        }
    }

    fn end_tokens(&self, vocabulary: usize, defaults: &Defaults) -> Result<Vec<Token>, Problem> {
        let mut all = if self.ignore_eos { Vec::new() } else { defaults.end_tokens.clone() };
        let more = self.stop_token_ids.as_deref().unwrap_or_default();
        check_range("stop_token_ids", more.len(), 0, MAX_LISTED_IDS)?;
        all.extend(check_token_ids("stop_token_ids", more, vocabulary)?);
        Ok(all)
    }

    /// An empty list does not limit the tokens: otherwise none could be sampled.
    fn allowed(&self, vocabulary: usize) -> Result<Option<AllowedTokens>, Problem> {
        let listed = self.allowed_token_ids.as_deref().filter(|listed| !listed.is_empty());
        let Some(listed) = listed else { return Ok(None) };
        check_range("allowed_token_ids", listed.len(), 1, vocabulary)?;
        Ok(Some(AllowedTokens::new(check_token_ids("allowed_token_ids", listed, vocabulary)?)))
    }

    fn scores(&self, vocabulary: usize) -> Result<Option<Alternatives>, Problem> {
        let Some(listed) = &self.logprob_token_ids else { return Ok(None) };
        check_range("logprob_token_ids", listed.len(), 1, MAX_LISTED_IDS)?;
        let listed = check_token_ids("logprob_token_ids", listed, vocabulary)?;
        Ok(Some(Alternatives::Tokens(listed.into())))
    }

    /// Truncation of prompts, if requested.
    ///
    /// # Errors
    /// Values out of range.
    pub fn truncation(&self, model: &LoadedModel) -> Result<Option<Truncation>, Problem> {
        let invalid = |param, problem: String| Err(Problem::invalid(problem).with_param(param));
        let side = match self.truncation_side.as_deref() {
            None | Some("left") => Side::Left,
            Some("right") => Side::Right,
            Some(got) => {
                let problem = format!("truncation_side: expected left or right, got {got:?}");
                return invalid("truncation_side", problem);
            }
        };
        let (param, max) = ("truncate_prompt_tokens", model.context.saturating_sub(1));
        Ok(match self.truncate_prompt_tokens {
            None => None,
            Some(-1) => Some(Truncation { max: None, side }),
            Some(got) => match usize::try_from(got) {
                Ok(got) if (1..=max).contains(&got) => Some(Truncation { max: Some(got), side }),
                _ => {
                    let problem = format!("{param}: expected -1, or 1 to {max}, got {got}");
                    return invalid(param, problem);
                }
            },
        })
    }

    fn repetition(&self) -> Result<Option<RepetitionPenalty>, Problem> {
        let Some(penalty) = self.repetition_penalty.filter(|penalty| *penalty != 1.0) else {
            return Ok(None);
        };
        if !(0.01..=100.0).contains(&penalty) {
            let problem = format!("repetition_penalty: expected from 0.01 to 100, got {penalty}");
            return Err(Problem::invalid(problem).with_param("repetition_penalty"));
        }
        let last = match self.repeat_last_n {
            None | Some(-1) => None,
            Some(last) => Some(usize::try_from(last).map_err(|_| {
                let problem = format!("repeat_last_n: expected a number, or -1, got {last}");
                Problem::invalid(problem).with_param("repeat_last_n")
            })?),
        };
        // The prompt is set later.
        Ok(Some(RepetitionPenalty { penalty, prompt: [].into(), last }))
    }

    /// Whether the request gives a sampling setting.
    fn gives_sampling(&self) -> bool {
        self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some()
    }

    fn sampling(&self, default: Sampling) -> Result<Sampling, Problem> {
        if let Some(got) = self.top_k.filter(|k| *k < -1) {
            let problem =
                format!("top_k: expected a number of tokens, or 0 or -1 for all, got {got}");
            return Err(Problem::invalid(problem).with_param("top_k"));
        }
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: match self.top_k {
                None => default.top_k,
                Some(k) => usize::try_from(k).ok().filter(|k| *k > 0),
            },
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
        })
    }

    fn traces(&self) -> Result<Option<usize>, Problem> {
        if self.steps.is_some() && !self.stream {
            return Err(Problem::invalid("steps needs stream").with_param("steps"));
        }
        self.steps.map(|top| check_range("steps", top, 1, 16)).transpose()
    }

    fn penalties(&self, vocabulary: usize) -> Result<Penalties, Problem> {
        let penalty = |param: &str, value: Option<f32>| match value.unwrap_or(0.0) {
            value if (-2.0..=2.0).contains(&value) => Ok(value),
            got => Err(Problem::invalid(format_args!("{param}: expected from -2 to 2, got {got}"))
                .with_param(param)),
        };
        let invalid = |expected: String| {
            Problem::invalid(format!("logit_bias: expected {expected}")).with_param("logit_bias")
        };
        let id = |id: &str| id.parse().ok().filter(|token: &Token| (*token as usize) < vocabulary);
        let biases = self.logit_bias.iter().flatten();
        let unknown: Vec<&str> =
            biases.map(|(name, _)| &**name).filter(|name| id(name).is_none()).collect();
        if !unknown.is_empty() {
            let (shown, more) = unknown.split_at(unknown.len().min(8));
            let more =
                if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            return Err(invalid(format!("token ids below {vocabulary}, got {shown:?}{more}")));
        }
        let mut bias = BTreeMap::new();
        for (name, &value) in self.logit_bias.iter().flatten() {
            let Some(token) = id(name) else { continue };
            if !(-100.0..=100.0).contains(&value) {
                return Err(invalid(format!("values from -100 to 100, got {value}")));
            }
            if bias.insert(token, value).is_some() {
                return Err(invalid(format!("each token once, got {token} twice")));
            }
        }
        Ok(Penalties {
            bias: bias.into_iter().collect(),
            repetition: self.repetition()?,
            frequency: penalty("frequency_penalty", self.frequency_penalty)?,
            presence: penalty("presence_penalty", self.presence_penalty)?,
        })
    }

    /// Negative seeds are valid.
    fn seed(&self) -> Result<Option<u64>, Problem> {
        let Some(seed) = &self.seed else { return Ok(None) };
        let seed = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
        seed.map(Some).ok_or_else(|| {
            Problem::invalid("seed: expected an integer of 64 bits").with_param("seed")
        })
    }
}
