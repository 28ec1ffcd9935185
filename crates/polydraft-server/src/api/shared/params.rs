//! What completions and chat have in common: sampling, limits, speculation.

use std::collections::BTreeMap;

use polydraft::{Sampling, Token};
use polydraft_engine::{AllowedTokens, Alternatives, Limits, Penalties, Repetition};
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;

use super::answer::UsageTold;
use super::error::Problem;
use super::speculation;
use super::timings::Tells;
use super::values::{OneOrMany, flag_or_not};
use crate::worker::RequestParams;
use crate::{App, Defaults};

/// Parameters of every sequence.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Common {
    /// The model's name, as `/v1/models` has it. Default: the one that is served.
    pub model: Option<String>,
    /// Divides the logits; 0 takes the likeliest token always.
    pub temperature: Option<f64>,
    /// Keep the likeliest tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Keep so many of the likeliest tokens; 0 or -1: all.
    pub top_k: Option<i64>,
    /// Keep the tokens at least so many times as likely as the likeliest.
    pub min_p: Option<f64>,
    /// Added to the logits of tokens, by id, from -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The ids of the only tokens that are possible.
    pub allowed_token_ids: Option<Vec<Token>>,
    /// Ids of tokens whose log-probabilities come with every token's, instead of the likeliest.
    pub logprob_token_ids: Option<Vec<Token>>,
    /// Tokens of the prompt at most: others are cut off. -1: as many as leave room for the output.
    pub truncate_prompt_tokens: Option<i64>,
    /// On which side: `"left"`, where the prompt begins, or `"right"`. Default: left.
    pub truncation_side: Option<String>,
    /// Subtracted from a token's logit for every time that it was generated, from -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Subtracted from a token's logit if it was generated, from -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Divides the logits above 0 of tokens that stand in the prompt or the output, and multiplies
    /// those below, from 0.01 to 100; 1 changes nothing. repeat_penalty is another name of it.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    /// Only tokens among so many of the last ones are penalised by repetition_penalty; -1: all.
    pub repeat_last_n: Option<i64>,
    /// Of all random decisions: the same seed gives the same output, whatever else the server does.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Number>,
    /// Sequences for each prompt. Default 1.
    pub n: Option<usize>,
    /// Strings that end the output and are not part of it.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop: Option<OneOrMany<String>>,
    /// Token ids that end the output besides the model's end tokens.
    pub stop_token_ids: Option<Vec<Token>>,
    /// Whether end tokens do not end the output; stop_token_ids do.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub ignore_eos: bool,
    /// Tokens of the output at least: before, no end token and none of stop_token_ids is possible.
    pub min_tokens: Option<usize>,
    /// Whether to stream the output as it is decided.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub stream: bool,
    /// How to stream.
    pub stream_options: Option<StreamOptions>,
    /// The end user: accepted, and of no effect.
    pub user: Option<String>,
    /// The newer name of the same, as far as rules go.
    #[serde(rename = "safety_identifier")]
    pub _safety_identifier: Option<String>,
    /// The newer name of the same, as far as caches go: prompts that begin alike share what was
    /// computed anyway.
    #[serde(rename = "prompt_cache_key")]
    pub _prompt_cache_key: Option<String>,
    /// The client's own notes on the answer: accepted, and not stored.
    pub metadata: Option<BTreeMap<String, String>>,
    /// `"none"`, or `{"verifier": .., "tree": .., "draft": ..}`. Default: as the server was
    /// started.
    #[schema(value_type = Option<Object>)]
    pub speculation: Option<Value>,
    /// `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema":
    /// {"name": .., "schema": ..}}`.
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// The form of the output, one of `{"json": schema}`, `{"json_object": true}`, `{"regex": ..}`,
    /// `{"choice": [..]}` and `{"grammar": ..}` in Lark's notation or in GBNF. The older parameters
    /// guided_json, guided_regex, guided_choice and guided_grammar say the same, and llama.cpp's
    /// json_schema and grammar.
    #[schema(value_type = Option<Object>)]
    pub structured_outputs: Option<Value>,
    /// With every chunk of a stream the steps of the engine, with so many of the likeliest tokens
    /// of each distribution, from 1 to 16.
    pub steps: Option<usize>,
    /// Whether a stream tells how much of the prompt is prefilled, as llama.cpp's
    /// `prompt_progress`.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub return_progress: bool,
    /// Whether the answer, and every chunk of a stream, has llama.cpp's `timings`.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub timings_per_token: bool,
    /// What is not common.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// How to stream.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether a last chunk has the usage.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub include_usage: bool,
    /// Whether chunks are padded to one length, so that who listens to encrypted ones learns less:
    /// not supported.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub include_obfuscation: bool,
    /// Whether every chunk has the usage so far, beside include_usage.
    #[serde(default, deserialize_with = "flag_or_not")]
    pub continuous_usage_stats: bool,
}

impl StreamOptions {
    /// Where a stream of them tells the usage.
    pub fn usage(&self) -> UsageTold {
        match (self.include_usage, self.continuous_usage_stats) {
            (false, _) => UsageTold::Never,
            (true, false) => UsageTold::AtTheEnd,
            (true, true) => UsageTold::Always,
        }
    }

    /// Whether they change nothing.
    pub fn is_neutral(&self) -> bool {
        !self.include_usage && !self.include_obfuscation
    }
}

/// The least and the most that a parameter may be.
pub fn within(param: &str, value: usize, least: usize, most: usize) -> Result<usize, Problem> {
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(Problem::invalid(format_args!(
            "{param}: expected from {least} to {most}, got {value}"
        ))
        .of(param)),
    }
}

/// Where prompts lose tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// What becomes of long prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens at most; none: as many as leave room for the output.
    most: Option<usize>,
    side: Side,
}

impl Truncation {
    /// Cuts a prompt off, before an output of so many tokens at most.
    pub fn cut(self, prompt: &mut Vec<Token>, context: usize, max_tokens: Option<usize>) {
        let room = context.saturating_sub(max_tokens.unwrap_or(1).max(1)).max(1);
        let (length, most) = (prompt.len(), self.most.unwrap_or(room));
        match self.side {
            Side::Left => drop(prompt.drain(..length.saturating_sub(most))),
            Side::Right => prompt.truncate(most),
        }
    }
}

/// These ids, if there are tokens of them.
fn known<'a>(param: &str, listed: &'a [Token], vocabulary: usize) -> Result<&'a [Token], Problem> {
    match listed.iter().find(|token| **token as usize >= vocabulary) {
        None => Ok(listed),
        Some(got) => {
            let problem = format!("{param}: expected token ids below {vocabulary}, got {got}");
            Err(Problem::invalid(problem).of(param))
        }
    }
}

/// Stop strings at most, and the bytes of each.
const STOPS: usize = 16;
const STOP_BYTES: usize = 1024;
/// Token ids at most that end an output, or whose log-probabilities are told.
const MOST_LISTED: usize = 256;

impl Common {
    /// The parameters of every prompt; the prompts come later, and so does the grammar of a form.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn request_params(
        &self,
        app: &App,
        defaults: &Defaults,
        max_tokens: Option<usize>,
    ) -> Result<RequestParams, Problem> {
        if let Some(options) = &self.stream_options {
            if !self.stream {
                let problem = Problem::invalid("stream_options has no meaning without stream");
                return Err(problem.of("stream_options"));
            }
            if options.include_obfuscation {
                let problem =
                    Problem::invalid("stream_options.include_obfuscation is not supported");
                return Err(problem
                    .of("stream_options.include_obfuscation")
                    .code("unsupported_parameter"));
            }
        }
        let sampling = self.sampling(defaults.sampling.target())?;
        sampling.validate()?;
        let settings = speculation::resolve(
            app,
            self.speculation.as_ref(),
            defaults.sampling.draft_of(sampling),
        )?;
        let count = within("n", self.n.unwrap_or(1), 1, app.limits.texts)?;
        let speculation = settings.map(|settings| speculation::build(app, settings, count));
        let stop = self.stop.clone().map_or_else(|| defaults.stop.clone(), OneOrMany::into_vec);
        within("stop", stop.len(), 0, STOPS)?;
        if let Some(wrong) = stop.iter().find(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
            let expected = format!(
                "stop: expected strings of 1 to {STOP_BYTES} bytes, got one of {}",
                wrong.len()
            );
            return Err(Problem::invalid(expected).of("stop"));
        }
        Ok(RequestParams {
            prompt: Vec::new(),
            sampling,
            penalties: self.penalties(app.vocabulary)?,
            allowed: self.allowed(app.vocabulary)?,
            least_tokens: self.min_tokens.unwrap_or(0),
            grammar: None,
            speculation: speculation.transpose()?,
            limits: Limits {
                max_tokens: max_tokens.or(defaults.max_tokens),
                end_tokens: self.end_tokens(app.vocabulary, defaults)?,
                stop,
            },
            seed: self.seed()?.unwrap_or_else(polydraft_runtime::random),
            seeded: self.seed.is_some(),
            marks: Vec::new(),
            count,
            scores: self.scores(app.vocabulary)?,
            prompt_scores: None,
            progress: self.tells().follows(),
            traces: self.traces()?,
        })
    }

    /// What the answer tells of its progress and times.
    pub fn tells(&self) -> Tells {
        Tells { progress: self.stream && self.return_progress, timings: self.timings_per_token }
    }

    fn end_tokens(&self, vocabulary: usize, defaults: &Defaults) -> Result<Vec<Token>, Problem> {
        let mut all = if self.ignore_eos { Vec::new() } else { defaults.end_tokens.clone() };
        let more = self.stop_token_ids.as_deref().unwrap_or_default();
        within("stop_token_ids", more.len(), 0, MOST_LISTED)?;
        all.extend(known("stop_token_ids", more, vocabulary)?);
        Ok(all)
    }

    /// An empty list is no limit: there would be nothing to sample.
    fn allowed(&self, vocabulary: usize) -> Result<Option<AllowedTokens>, Problem> {
        let listed = self.allowed_token_ids.as_deref().filter(|listed| !listed.is_empty());
        let Some(listed) = listed else { return Ok(None) };
        within("allowed_token_ids", listed.len(), 1, vocabulary)?;
        Ok(Some(AllowedTokens::new(known("allowed_token_ids", listed, vocabulary)?)))
    }

    fn scores(&self, vocabulary: usize) -> Result<Option<Alternatives>, Problem> {
        let Some(listed) = &self.logprob_token_ids else { return Ok(None) };
        within("logprob_token_ids", listed.len(), 1, MOST_LISTED)?;
        let listed = known("logprob_token_ids", listed, vocabulary)?;
        Ok(Some(Alternatives::These(listed.into())))
    }

    /// How prompts are cut off, if they are.
    ///
    /// # Errors
    /// Values that there are not.
    pub fn truncation(&self, app: &App) -> Result<Option<Truncation>, Problem> {
        let wrong = |param, problem: String| Err(Problem::invalid(problem).of(param));
        let side = match self.truncation_side.as_deref() {
            None | Some("left") => Side::Left,
            Some("right") => Side::Right,
            Some(got) => {
                let problem = format!("truncation_side: expected left or right, got {got:?}");
                return wrong("truncation_side", problem);
            }
        };
        let (param, most) = ("truncate_prompt_tokens", app.context.saturating_sub(1));
        Ok(match self.truncate_prompt_tokens {
            None => None,
            Some(-1) => Some(Truncation { most: None, side }),
            Some(got) => match usize::try_from(got) {
                Ok(got) if (1..=most).contains(&got) => Some(Truncation { most: Some(got), side }),
                _ => {
                    let problem = format!("{param}: expected -1, or 1 to {most}, got {got}");
                    return wrong(param, problem);
                }
            },
        })
    }

    fn repetition(&self) -> Result<Option<Repetition>, Problem> {
        let Some(penalty) = self.repetition_penalty.filter(|penalty| *penalty != 1.0) else {
            return Ok(None);
        };
        if !(0.01..=100.0).contains(&penalty) {
            let problem = format!("repetition_penalty: expected from 0.01 to 100, got {penalty}");
            return Err(Problem::invalid(problem).of("repetition_penalty"));
        }
        let last = match self.repeat_last_n {
            None | Some(-1) => None,
            Some(last) => Some(usize::try_from(last).map_err(|_| {
                let problem = format!("repeat_last_n: expected a number, or -1, got {last}");
                Problem::invalid(problem).of("repeat_last_n")
            })?),
        };
        // The prompt is known later.
        Ok(Some(Repetition { penalty, prompt: [].into(), last }))
    }

    fn sampling(&self, default: Sampling) -> Result<Sampling, Problem> {
        if let Some(got) = self.top_k.filter(|k| *k < -1) {
            let problem =
                format!("top_k: expected a number of tokens, or 0 or -1 for all, got {got}");
            return Err(Problem::invalid(problem).of("top_k"));
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
            return Err(Problem::invalid("steps are sent in streams only").of("steps"));
        }
        self.steps.map(|top| within("steps", top, 1, 16)).transpose()
    }

    fn penalties(&self, vocabulary: usize) -> Result<Penalties, Problem> {
        let penalty = |param: &str, value: Option<f32>| match value.unwrap_or(0.0) {
            value if (-2.0..=2.0).contains(&value) => Ok(value),
            got => Err(Problem::invalid(format_args!("{param}: expected from -2 to 2, got {got}"))
                .of(param)),
        };
        let wrong = |expected: String| {
            Problem::invalid(format!("logit_bias: expected {expected}")).of("logit_bias")
        };
        let id = |id: &str| id.parse().ok().filter(|token: &Token| (*token as usize) < vocabulary);
        let given = self.logit_bias.iter().flatten();
        let unknown: Vec<&str> =
            given.map(|(name, _)| &**name).filter(|name| id(name).is_none()).collect();
        if !unknown.is_empty() {
            let (shown, more) = unknown.split_at(unknown.len().min(8));
            let more =
                if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            return Err(wrong(format!("token ids below {vocabulary}, got {shown:?}{more}")));
        }
        let mut bias = BTreeMap::new();
        for (name, &value) in self.logit_bias.iter().flatten() {
            let Some(token) = id(name) else { continue };
            if !(-100.0..=100.0).contains(&value) {
                return Err(wrong(format!("values from -100 to 100, got {value}")));
            }
            if bias.insert(token, value).is_some() {
                return Err(wrong(format!("each token once, got {token} twice")));
            }
        }
        Ok(Penalties {
            bias: bias.into_iter().collect(),
            repetition: self.repetition()?,
            frequency: penalty("frequency_penalty", self.frequency_penalty)?,
            presence: penalty("presence_penalty", self.presence_penalty)?,
        })
    }

    /// Negative ones are as good as others.
    fn seed(&self) -> Result<Option<u64>, Problem> {
        let Some(seed) = &self.seed else { return Ok(None) };
        let seed = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
        seed.map(Some)
            .ok_or_else(|| Problem::invalid("seed: expected an integer of 64 bits").of("seed"))
    }
}
