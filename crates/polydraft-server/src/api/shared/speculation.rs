//! Verifier and tree of one request: checked settings, and building from them.

use polydraft::policy::TreeChoice;
use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_runtime::message::field;
use polydraft_runtime::{Speculation, TreeName, check_draft_count, explain, explain_incompatible};
use serde::Deserialize;
use serde_json::Value;

use super::error::Problem;
use super::read::read;
use super::values::OneOrMany;
use crate::LoadedModel;
use crate::worker::BuiltSpeculation;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeculationParams {
    verifier: Option<String>,
    tree: Option<String>,
    draft: Option<String>,
    /// Temperature of the draft, or one for each of several paths.
    draft_temperature: Option<OneOrMany<f64>>,
}

/// Maximum nodes of a request's tree, and maximum draws: they take part in the whole batch's pass.
const MAX_NODES: f64 = 64.0;
const MAX_DRAWS: f64 = 256.0;

/// Settings of the parameter `speculation`, completed by the server's defaults. `sampling` is the
/// draft's sampling.
///
/// # Errors
/// An invalid verifier or tree, or one that is too large for a request; a draft that is not loaded.
pub fn resolve(
    model: &LoadedModel,
    param: Option<&Value>,
    sampling: Sampling,
) -> Result<Option<Speculation>, Problem> {
    let default =
        model.speculation.as_ref().map(|default| Speculation { sampling, ..default.clone() });
    let param = match param {
        None => return Ok(default),
        Some(Value::String(name)) if name == "none" => return Ok(None),
        Some(Value::Object(_)) => param.cloned().unwrap_or_default(),
        Some(_) => {
            let expected =
                r#"speculation: expected "none" or {"verifier": .., "tree": .., "draft": ..}"#;
            return Err(Problem::invalid(expected).with_param("speculation"));
        }
    };
    let SpeculationParams { verifier, tree, draft, draft_temperature } =
        read(param).map_err(|problem| problem.in_object("speculation"))?;
    let invalid = |problem: String| Problem::invalid(problem).with_param("speculation");
    if verifier.as_deref() == Some("none") {
        return match (tree, draft, draft_temperature) {
            (None, None, None) => Ok(None),
            _ => Err(invalid(
                "speculation: the verifier none allows no tree and no draft".to_owned(),
            )),
        };
    }
    let Some(default) = default else {
        return Err(invalid("speculation: this server was started without a draft".to_owned()));
    };
    if let Some(draft) = draft.filter(|draft| Some(draft) != model.draft.as_ref()) {
        let served = model.draft.as_deref().unwrap_or("none");
        return Err(invalid(format!("speculation: expected the draft {served:?}, got {draft:?}")));
    }
    let named: Option<VerifierKind> = verifier
        .map(|name| name.parse().map_err(|error| invalid(in_field("verifier", &error))))
        .transpose()?;
    let temperatures = draft_temperature.map(OneOrMany::into_vec);
    let (sampling, per_path) = draft_sampling(model, sampling, temperatures).map_err(&invalid)?;
    let tree_for = |verifier: &VerifierKind| match (&tree, per_path.len()) {
        (None, 0) => Ok(default.tree.clone()),
        (None, drafts) => match &default.tree {
            tree @ PolicyKind::Distinct(distinct) if distinct.drafts == drafts => Ok(tree.clone()),
            _ => Ok(PolicyKind::default_for(verifier, drafts)),
        },
        (Some(name), _) => parse_tree(model, name, verifier),
    };
    let (verifier, tree) = match named {
        Some(verifier) => {
            let tree = tree_for(&verifier).map_err(invalid)?;
            (verifier, tree)
        }
        None => choose_verifier(&default.verifier, tree_for).map_err(invalid)?,
    };
    let drafts = |tree: &PolicyKind| match tree {
        PolicyKind::Distinct(distinct) => distinct.drafts,
        _ => 0,
    };
    // Settings per draft apply to any tree with the same number of drafts.
    let same = tree == default.tree || drafts(&tree) == default.each.len();
    let each = match per_path.is_empty() {
        true if same => default.each,
        _ => per_path,
    };
    check_draft_count(&tree, each.len()).map_err(|error| invalid(explain(&error, field)))?;
    if model.drafters > 1 && each.len() != model.drafters {
        let drafters = model.drafters;
        return Err(invalid(format!(
            "speculation: expected the tree distinct:{drafters},L, with a path for each of the \
             {drafters} drafts, got {}",
            tree.describe()
        )));
    }
    check_tree_size(&tree, model.vocabulary)
        .map_err(|problem| invalid(format!("speculation: {problem}")))?;
    Ok(Some(Speculation { verifier, tree, sampling, each }))
}

/// Returns the server's verifier with the tree for it, or the best verifier that is exact for the
/// tree if the server's is not.
fn choose_verifier(
    default: &VerifierKind,
    tree_for: impl Fn(&VerifierKind) -> Result<PolicyKind, String>,
) -> Result<(VerifierKind, PolicyKind), String> {
    let tree = tree_for(default)?;
    if tree.is_supported_by(default) {
        return Ok((default.clone(), tree));
    }
    let mut others = VerifierKind::by_preference()
        .filter_map(|other| Some((tree_for(&other).ok()?, other)))
        .filter(|(tree, other)| tree.is_supported_by(other) && tree.suits(other));
    let Some((tree, other)) = others.next() else { return Ok((default.clone(), tree)) };
    log::info!("{default} is not exact for the tree {tree} of a request: using {other}");
    Ok((other, tree))
}

/// Builds verifiers and trees for `count` sequences of a prompt.
///
/// # Errors
/// Verifiers and trees that cannot be built, or do not fit each other.
pub fn build(
    model: &LoadedModel,
    settings: Speculation,
    is_seeded: bool,
    count: usize,
) -> Result<BuiltSpeculation, Problem> {
    let (verifier, tree) = (settings.verifier.clone(), settings.tree.clone());
    model.engine.build(settings, is_seeded, count).map_err(|error| {
        let error = explain_incompatible(&verifier, &tree, error);
        Problem::invalid(explain(&error, field)).with_param("speculation")
    })
}

/// Formats an error of a field of `speculation`, with its name once.
fn in_field(name: &str, error: &polydraft::Error) -> String {
    match error {
        polydraft::Error::Name { kind, .. } if *kind == name => format!("speculation.{error}"),
        _ => format!("speculation.{name}: {error}"),
    }
}

/// Checks that a tree over `vocabulary` tokens is small enough for a batch.
///
/// # Errors
/// A message with the limits and the tree.
pub fn check_tree_size(tree: &PolicyKind, vocabulary: usize) -> Result<(), String> {
    match tree.nodes() <= MAX_NODES && tree.max_draws(vocabulary) <= MAX_DRAWS {
        true => Ok(()),
        false => Err(format!(
            "expected a tree of at most {MAX_NODES} nodes and {MAX_DRAWS} draws, got {}",
            tree.describe()
        )),
    }
}

/// Sampling of the draft at these temperatures, and of each path if there are several.
fn draft_sampling(
    model: &LoadedModel,
    sampling: Sampling,
    temperatures: Option<Vec<f64>>,
) -> Result<(Sampling, Vec<Sampling>), String> {
    let Some(temperatures) = temperatures else { return Ok((sampling, Vec::new())) };
    let at = |temperature: &f64| Sampling { temperature: *temperature, ..sampling };
    let each: Vec<Sampling> = temperatures.iter().map(at).collect();
    each.iter().try_for_each(Sampling::validate).map_err(|error| error.to_string())?;
    match (&each[..], model.drafters) {
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

fn parse_tree(
    model: &LoadedModel,
    name: &str,
    verifier: &VerifierKind,
) -> Result<PolicyKind, String> {
    let invalid = |error| in_field("tree", &error);
    let name: TreeName = name.parse().map_err(invalid)?;
    let acceptance = model.acceptance.as_deref();
    if name.needs_acceptance() && acceptance.is_none() {
        return Err(
            "speculation.tree: a sequoia tree needs measured acceptance rates, and this server \
             was started without them"
                .to_owned(),
        );
    }
    let choice = TreeChoice { verifier: Some(verifier), acceptance, ..TreeChoice::default() };
    // An adaptive tree gets its costs when it is built.
    let tree = name.choose(&choice).map_err(invalid)?;
    tree.build().map_err(invalid)?;
    Ok(tree)
}
