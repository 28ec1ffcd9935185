//! Parameters of a model's reasoning, under the names of several servers.

use polydraft_text::OutputForm;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::Problem;
use super::values::{flag, flag_or_false, negative_limit};
use crate::LoadedModel;

/// Parameters of reasoning.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct Thinking {
    /// Variables for the model's chat template, such as `{"enable_thinking": false}`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Reasoning effort, passed as the variable `reasoning_effort` to chat templates that use it.
    /// `"none"` also turns the reasoning off.
    reasoning_effort: Option<String>,
    /// Whether the model reasons: the variable `enable_thinking`, as a parameter.
    #[serde(default, deserialize_with = "flag")]
    enable_thinking: Option<bool>,
    /// Anthropic's parameter: `{"type": "disabled"}`, or `{"type": "enabled", "budget_tokens":
    /// ..}`.
    #[schema(value_type = Option<Object>)]
    thinking: Option<Switch>,
    /// Maximum tokens of the reasoning: after them the model must close it, and answers. -1 sets
    /// no limit. Also as `thinking_budget_tokens` and `reasoning_budget`.
    #[serde(
        default,
        alias = "thinking_budget_tokens",
        alias = "reasoning_budget",
        deserialize_with = "budget"
    )]
    thinking_token_budget: Option<i64>,
    /// Whether stop strings also end the reasoning. Default: false, only the answer.
    #[serde(default, deserialize_with = "flag_or_false")]
    stop_in_reasoning: bool,
    /// Whether the answer contains the reasoning. Default: true.
    #[serde(default, deserialize_with = "flag")]
    include_reasoning: Option<bool>,
    /// Whether the reasoning effort has the name `reasoning.effort`.
    #[serde(skip)]
    #[schema(ignore)]
    has_nested_effort: bool,
}

/// Deserializes a number of tokens, or -1.
fn budget<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let value: Option<Value> = Option::deserialize(deserializer)?;
    let number = |value: Value| {
        let number = value.as_i64().or_else(|| {
            value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64)
        });
        match number {
            Some(number @ -1..) => Ok(number),
            Some(number) => Err(serde::de::Error::custom(negative_limit(number))),
            None => {
                let problem = format_args!("expected a number of tokens, got {value}");
                Err(serde::de::Error::custom(problem))
            }
        }
    };
    value.map(number).transpose()
}

#[derive(Debug, Deserialize)]
struct Switch {
    #[serde(rename = "type")]
    kind: Option<String>,
    budget_tokens: Option<i64>,
}

/// How a request limits the reasoning.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThinkingLimits {
    /// Maximum tokens.
    pub budget: Option<usize>,
    /// Whether stop strings end it.
    pub stops: bool,
}

impl Thinking {
    /// Sets the reasoning effort unless it is set.
    pub fn or_effort(mut self, effort: Option<String>) -> Self {
        self.has_nested_effort = self.reasoning_effort.is_none();
        self.reasoning_effort = self.reasoning_effort.or(effort);
        self
    }

    /// Whether the answer is to have no reasoning, which the model may write nevertheless.
    pub fn omits_reasoning(&self) -> bool {
        self.include_reasoning == Some(false)
    }

    /// Whether the model is to reason, if the request says so.
    fn switch(&self) -> Option<bool> {
        let kind = self.thinking.as_ref().and_then(|switch| switch.kind.as_deref());
        let is_off = self.reasoning_effort.as_deref() == Some("none");
        match (self.enable_thinking, kind) {
            (Some(enabled), _) => Some(enabled),
            (None, Some("disabled")) => Some(false),
            (None, Some("enabled" | "adaptive")) => Some(true),
            (None, _) => is_off.then_some(false),
        }
    }

    /// Names parameters without effect with this model as ignored: variables that its chat
    /// template does not read, and budgets without reasoning.
    ///
    /// # Errors
    /// With the server's option `strict`, the first of them.
    pub fn name_without_effect(
        &self,
        model: &LoadedModel,
        ignored: &mut Vec<String>,
    ) -> Result<(), Problem> {
        for (param, reason) in self.without_effect(&model.output_form()) {
            if model.options.strict {
                let problem = format!("{param} has no effect with this model: {reason}");
                return Err(Problem::invalid(problem)
                    .with_param(&param)
                    .with_code("unsupported_parameter"));
            }
            ignored.push(format!("{param} ({reason})"));
        }
        Ok(())
    }

    /// Parameters without effect, and why.
    fn without_effect(&self, output: &OutputForm) -> Vec<(String, &'static str)> {
        const UNREAD: &str = "the chat template does not read it";
        const NO_REASONING: &str = "the model has no reasoning";
        let reads = |name: &str| output.variables.iter().any(|variable| variable == name);
        let has_reasoning = output.has_channels || output.reasoning.has_reasoning();
        let reads_switch = reads("enable_thinking") || reads("thinking");
        // A model that always reasons, or never, does what it is told to.
        let is_done = self.switch().is_none_or(|enabled| reads_switch || enabled == has_reasoning);
        let mut unused = Vec::new();
        let effort = if self.has_nested_effort { "reasoning.effort" } else { "reasoning_effort" };
        match self.reasoning_effort.as_deref() {
            None => {}
            _ if reads("reasoning_effort") => {}
            Some("none") if is_done => {}
            Some(_) => unused.push((effort.to_owned(), UNREAD)),
        }
        let reason = if has_reasoning { UNREAD } else { NO_REASONING };
        let is_switched = self.thinking.as_ref().is_some_and(|switch| switch.kind.is_some());
        if !is_done && self.enable_thinking.is_some() {
            unused.push(("enable_thinking".to_owned(), reason));
        } else if !is_done && is_switched {
            unused.push(("thinking".to_owned(), reason));
        }
        let budget = match &self.thinking {
            _ if self.thinking_token_budget.is_some_and(|budget| budget >= 0) => {
                Some("thinking_token_budget")
            }
            Some(Switch { budget_tokens: Some(0..), .. }) => Some("thinking.budget_tokens"),
            _ => None,
        };
        if let Some(name) = budget.filter(|_| !has_reasoning) {
            unused.push((name.to_owned(), NO_REASONING));
        }
        let given = self.chat_template_kwargs.iter().flat_map(Map::keys);
        let unread = given.filter(|name| !reads(name));
        unused.extend(unread.map(|name| (format!("chat_template_kwargs.{name}"), UNREAD)));
        unused
    }

    /// Variables for a chat template: those of the request override the others.
    pub fn variables(&self) -> Map<String, Value> {
        let mut variables = Map::new();
        if let Some(enabled) = self.switch() {
            // Templates know one of the two names.
            for name in ["enable_thinking", "thinking"] {
                variables.insert(name.to_owned(), enabled.into());
            }
        }
        if let Some(effort) = &self.reasoning_effort {
            variables.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        variables.extend(self.chat_template_kwargs.clone().unwrap_or_default());
        variables
    }

    /// Limits of the reasoning.
    ///
    /// # Errors
    /// Two budgets that differ; a negative one other than -1.
    pub fn limits(&self) -> Result<ThinkingLimits, Problem> {
        let other = self.thinking.as_ref().and_then(|switch| switch.budget_tokens);
        if let Some(got) = other.filter(|budget| *budget < -1) {
            let param = "thinking.budget_tokens";
            let problem = format!("{param}: {}", negative_limit(got));
            return Err(Problem::invalid(problem).with_param(param));
        }
        let budget = match (self.thinking_token_budget, other) {
            (Some(one), Some(two)) if one != two => {
                let problem = "thinking_token_budget and thinking.budget_tokens differ: give one";
                return Err(Problem::invalid(problem).with_param("thinking_token_budget"));
            }
            (one, two) => one.or(two),
        };
        let budget = budget.and_then(|budget| usize::try_from(budget).ok());
        Ok(ThinkingLimits { budget, stops: self.stop_in_reasoning })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_every_name_of_the_parameters() {
        let thinking = |value: Value| serde_json::from_value::<Thinking>(value).expect("valid");
        for (value, enabled, budget) in [
            (json!({}), None, None),
            (json!({ "enable_thinking": false }), Some(false), None),
            (json!({ "reasoning_effort": "none" }), Some(false), None),
            (json!({ "thinking": { "type": "disabled" } }), Some(false), None),
            (json!({ "thinking": { "type": "enabled", "budget_tokens": 7 } }), Some(true), Some(7)),
            (json!({ "reasoning_budget": 0 }), None, Some(0)),
            (json!({ "thinking_budget_tokens": -1 }), None, None),
            (
                json!({ "enable_thinking": true,
                    "chat_template_kwargs": { "enable_thinking": false } }),
                Some(false),
                None,
            ),
        ] {
            let thinking = thinking(value.clone());
            let found = thinking.variables().get("enable_thinking").and_then(Value::as_bool);
            assert_eq!((found, thinking.limits().unwrap().budget), (enabled, budget), "{value}");
        }
        let both = json!({ "reasoning_budget": 1, "thinking": { "budget_tokens": 2 } });
        assert!(thinking(both).limits().is_err());
    }

    #[test]
    fn names_parameters_without_effect() {
        let mut plain = OutputForm::default();
        let mut thinks = OutputForm::default();
        thinks.reasoning.closing = "</think>".to_owned();
        let mut switches = thinks.clone();
        switches.variables = vec!["enable_thinking".to_owned(), "reasoning_effort".to_owned()];
        plain.variables = vec!["tools".to_owned()];
        for (value, form, expected) in [
            (json!({ "reasoning_effort": "low" }), &plain, "reasoning_effort"),
            (json!({ "reasoning_effort": "low" }), &switches, ""),
            (json!({ "reasoning_effort": "none" }), &plain, ""),
            (json!({ "reasoning_effort": "none" }), &thinks, "reasoning_effort"),
            (json!({ "enable_thinking": true }), &plain, "enable_thinking"),
            (json!({ "enable_thinking": true }), &thinks, ""),
            (json!({ "enable_thinking": false }), &thinks, "enable_thinking"),
            (json!({ "enable_thinking": false }), &switches, ""),
            (json!({ "thinking": { "type": "disabled" } }), &thinks, "thinking"),
            (
                json!({ "thinking": { "type": "enabled", "budget_tokens": 5 } }),
                &plain,
                "thinking thinking.budget_tokens",
            ),
            (json!({ "reasoning_budget": 5 }), &plain, "thinking_token_budget"),
            (json!({ "reasoning_budget": -1 }), &plain, ""),
            (json!({ "reasoning_budget": 5 }), &thinks, ""),
            (
                json!({ "chat_template_kwargs": { "tools": 1, "x": 2 } }),
                &plain,
                "chat_template_kwargs.x",
            ),
        ] {
            let thinking: Thinking = serde_json::from_value(value.clone()).expect("valid");
            let found = thinking.without_effect(form);
            let names: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
            assert_eq!(names.join(" "), expected, "{value}");
        }
    }
}
