//! Verifier and tree of one request: settings that are checked, and what is built from them.

use polydraft::policy::TreeChoice;
use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_runtime::message::field;
use polydraft_runtime::{Speculation, TreeName, check_drafts, explain, explain_unfit};
use serde::Deserialize;
use serde_json::Value;

use super::error::Problem;
use super::read::read;
use super::values::OneOrMany;
use crate::App;
use crate::worker::BuiltSpeculation;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeculationParams {
    verifier: Option<String>,
    tree: Option<String>,
    draft: Option<String>,
    /// The draft's temperature, or one for each of several paths.
    draft_temperature: Option<OneOrMany<f64>>,
}

/// Distinct tokens of a request's tree at most, and draws: they take part in the whole batch's
/// pass.
const MOST_NODES: f64 = 64.0;
const MOST_DRAWS: f64 = 256.0;

/// The settings that the parameter `speculation` has, and else those that the server was started
/// with. `sampling` is the draft's.
///
/// # Errors
/// Verifiers and trees that are none, or are too much for one request;
/// another draft than there is.
pub fn resolve(
    app: &App,
    param: Option<&Value>,
    sampling: Sampling,
) -> Result<Option<Speculation>, Problem> {
    let default =
        app.speculation.as_ref().map(|default| Speculation { sampling, ..default.clone() });
    let param = match param {
        None => return Ok(default),
        Some(Value::String(name)) if name == "none" => return Ok(None),
        Some(Value::Object(_)) => param.cloned().unwrap_or_default(),
        Some(_) => {
            let expected =
                r#"speculation: expected "none" or {"verifier": .., "tree": .., "draft": ..}"#;
            return Err(Problem::invalid(expected).of("speculation"));
        }
    };
    let SpeculationParams { verifier, tree, draft, draft_temperature } =
        read(param).map_err(|problem| problem.within("speculation"))?;
    let wrong = |problem: String| Problem::invalid(problem).of("speculation");
    if verifier.as_deref() == Some("none") {
        return match (tree, draft, draft_temperature) {
            (None, None, None) => Ok(None),
            _ => Err(wrong("speculation: the verifier none takes no tree and no draft".to_owned())),
        };
    }
    let Some(default) = default else {
        return Err(wrong("speculation: this server was started without a draft".to_owned()));
    };
    if let Some(draft) = draft.filter(|draft| Some(draft) != app.draft.as_ref()) {
        let here = app.draft.as_deref().unwrap_or("none");
        return Err(wrong(format!("speculation: the draft here is {here:?}, got {draft:?}")));
    }
    let verifier = match verifier {
        None => default.verifier,
        Some(name) => name.parse().map_err(|error| wrong(in_field("verifier", &error)))?,
    };
    let temperatures = draft_temperature.map(OneOrMany::into_vec);
    let (sampling, given) = draft_sampling(app, sampling, temperatures).map_err(&wrong)?;
    let tree = match (tree, given.len()) {
        (None, 0) => default.tree.clone(),
        (None, drafts) => match &default.tree {
            tree @ PolicyKind::Distinct(own) if own.drafts == drafts => tree.clone(),
            _ => PolicyKind::default_for(&verifier, drafts),
        },
        (Some(name), _) => parse_tree(app, &name, &verifier).map_err(wrong)?,
    };
    let drafts = |tree: &PolicyKind| match tree {
        PolicyKind::Distinct(own) => own.drafts,
        _ => 0,
    };
    // The settings of each draft go with a tree of as many.
    let same = tree == default.tree || drafts(&tree) == default.each.len();
    let each = match given.is_empty() {
        true if same => default.each,
        _ => given,
    };
    check_drafts(&tree, each.len()).map_err(|error| wrong(explain(&error, field)))?;
    if app.drafters > 1 && each.len() != app.drafters {
        let several = app.drafters;
        return Err(wrong(format!(
            "speculation: {several} drafts draw a path each here: expected the tree \
             distinct:{several},L, got {}",
            tree.describe()
        )));
    }
    fits(&tree, app.vocabulary).map_err(|problem| wrong(format!("speculation: {problem}")))?;
    Ok(Some(Speculation { verifier, tree, sampling, each }))
}

/// Builds verifiers and trees of these settings for so many sequences of a prompt.
///
/// # Errors
/// Verifiers and trees that cannot be built, or do not fit each other.
pub fn build(app: &App, settings: Speculation, count: usize) -> Result<BuiltSpeculation, Problem> {
    let (verifier, tree) = (settings.verifier.clone(), settings.tree.clone());
    app.desk.build(settings, count).map_err(|error| {
        let error = explain_unfit(&verifier, &tree, error);
        Problem::invalid(explain(&error, field)).of("speculation")
    })
}

/// Writes an error about a field of `speculation`, named once.
fn in_field(name: &str, error: &polydraft::Error) -> String {
    match error {
        polydraft::Error::Name { kind, .. } if *kind == name => format!("speculation.{error}"),
        _ => format!("speculation.{name}: {error}"),
    }
}

/// Whether a tree over `vocabulary` tokens is small enough for a pass with others.
///
/// # Errors
/// It is not; what was expected.
pub fn fits(tree: &PolicyKind, vocabulary: usize) -> Result<(), String> {
    match tree.nodes() <= MOST_NODES && tree.most_draws(vocabulary) <= MOST_DRAWS {
        true => Ok(()),
        false => Err(format!(
            "expected a tree of at most {MOST_NODES} nodes and {MOST_DRAWS} draws, got {}",
            tree.describe()
        )),
    }
}

/// The draft's settings at these temperatures, and those of each path where there are several.
fn draft_sampling(
    app: &App,
    sampling: Sampling,
    temperatures: Option<Vec<f64>>,
) -> Result<(Sampling, Vec<Sampling>), String> {
    let Some(temperatures) = temperatures else { return Ok((sampling, Vec::new())) };
    let at = |temperature: &f64| Sampling { temperature: *temperature, ..sampling };
    let each: Vec<Sampling> = temperatures.iter().map(at).collect();
    each.iter().try_for_each(Sampling::validate).map_err(|error| error.to_string())?;
    match (&each[..], app.drafters) {
        ([], _) => Err("speculation.draft_temperature: expected at least one number".to_owned()),
        ([one], 1) => Ok((*one, Vec::new())),
        ([one], drafts) => Ok((*one, vec![*one; drafts])),
        (all, drafts) if drafts == 1 || drafts == all.len() => Ok((all[0], each)),
        (all, drafts) => Err(format!(
            "speculation.draft_temperature: expected one number, or {drafts}, one for each draft, \
             got {}",
            all.len()
        )),
    }
}

fn parse_tree(app: &App, name: &str, verifier: &VerifierKind) -> Result<PolicyKind, String> {
    let wrong = |error| in_field("tree", &error);
    let name: TreeName = name.parse().map_err(wrong)?;
    let acceptance = app.acceptance.as_deref();
    if name.needs_acceptance() && acceptance.is_none() {
        return Err(
            "speculation.tree: a sequoia tree is made from measured acceptances, and this \
                    server was started without them"
                .to_owned(),
        );
    }
    let choice = TreeChoice { verifier: Some(verifier), acceptance, ..TreeChoice::default() };
    // An adaptive one gets its costs where it is built.
    let tree = name.choose(&choice).map_err(wrong)?;
    tree.build().map_err(wrong)?;
    Ok(tree)
}
