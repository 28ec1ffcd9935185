//! Resolves the options of speculation into a tree and its settings.

use std::path::Path;

use anyhow::{Context, Result};
use polydraft::policy::{DEFAULT_DEPTH, Distinct, StopBelow, TreeChoice, TreeName};
use polydraft::{PolicyKind, VerifierKind};
use serde::{Deserialize, Serialize};

use crate::message::{Message, OptionName, Part, message};
use crate::sampling::SamplingOptions;
use crate::speculation::{Speculation, SpeculationOptions};
use crate::usage::Usage;

/// A file of measured acceptances.
#[derive(Debug, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct AcceptanceFile {
    /// Probability that the first, second, .. distinct draft at a node is accepted.
    pub acceptance: Vec<f64>,
}

impl AcceptanceFile {
    /// Reads measured acceptances from a file.
    ///
    /// # Errors
    /// A file that cannot be read or contains no acceptances.
    pub fn read(path: &Path) -> Result<Self> {
        let text = polydraft_files::read_text(path, polydraft_files::FileKind::RECORD)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            format!("{}: expected {{\"acceptance\": [0.6, 0.15, ...]}}", path.display())
        })
    }
}

impl SpeculationOptions {
    /// Resolves the options; `None` is plain decoding. `demo` is the file of the demo pair's
    /// acceptances if it is used, `drafts` the number of drafts.
    ///
    /// # Errors
    /// Contradictory options, or a verifier that is not exact for the tree; the message suggests
    /// alternatives.
    pub fn resolve(
        &self,
        sampling: &SamplingOptions,
        drafts: usize,
        demo: Option<&Path>,
    ) -> Result<Option<Speculation>> {
        let Some(verifier) = &self.verifier else {
            self.check_plain(sampling, &OptionName::Verifier.with("none"))?;
            return Ok(None);
        };
        let resolved = self.resolve_with(verifier, sampling, drafts, demo);
        let mut others = VerifierKind::by_preference().filter(|_| self.verifier_by_tree);
        match resolved {
            Ok(resolved) => Ok(Some(resolved)),
            Err(error) => others
                .find_map(|other| {
                    let resolved = self.resolve_with(&other, sampling, drafts, demo).ok()?;
                    resolved.tree.suits(&other).then_some(resolved)
                })
                .map_or(Err(error), |resolved| Ok(Some(resolved))),
        }
    }

    fn resolve_with(
        &self,
        verifier: &VerifierKind,
        sampling: &SamplingOptions,
        drafts: usize,
        demo: Option<&Path>,
    ) -> Result<Speculation> {
        let each = sampling.per_draft(drafts)?;
        let mut tree = match each.len() {
            0 => self.resolve_tree(verifier, demo)?,
            drafts => self.tree_of_drafts(drafts)?,
        };
        check_draft_count(&tree, each.len())?;
        if let Some(below) = self.stop_below {
            tree = PolicyKind::StopBelow(StopBelow {
                below,
                policy: Box::new(tree),
                ..StopBelow::default()
            });
        }
        let speculation =
            Speculation { verifier: verifier.clone(), tree, sampling: sampling.draft(), each };
        speculation
            .build()
            .map_err(|error| explain_incompatible(verifier, &speculation.tree, error))?;
        Ok(speculation)
    }

    /// Checks that no option of speculation is given, because `plain` selects plain decoding.
    ///
    /// # Errors
    /// [`Usage`] for a given option.
    pub(crate) fn check_plain(&self, sampling: &SamplingOptions, plain: &Part) -> Result<()> {
        let given = [
            (OptionName::Paths, self.paths.is_some()),
            (OptionName::Depth, self.depth.is_some()),
            (OptionName::Tree, self.tree.is_some()),
            (OptionName::StopBelow, self.stop_below.is_some()),
            (OptionName::Drafting, self.drafting.is_some()),
            (OptionName::Acceptance, self.acceptance.is_some()),
            (OptionName::Costs, self.costs.is_some()),
        ];
        let given = given.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
        match given.or(sampling.given_draft_option()) {
            None => Ok(()),
            Some(option) => {
                let message = message![option, " has no meaning with ", plain.clone()];
                Err(Usage::unused(option, message))
            }
        }
    }

    /// Returns the tree for this verifier; `demo` is the file of the demo pair's acceptances if it
    /// is used.
    fn resolve_tree(&self, verifier: &VerifierKind, demo: Option<&Path>) -> Result<PolicyKind> {
        let Some(tree) = &self.tree else { return Ok(self.default_tree(verifier)) };
        self.check_tree(tree)?;
        let file = match tree.needs_acceptance() {
            true => self.acceptance.as_deref().or(demo),
            false => None,
        };
        let acceptance = file.map(AcceptanceFile::read).transpose()?;
        let choice = TreeChoice {
            verifier: Some(verifier),
            drafting: self.drafting,
            depth: self.depth.map(|depth| depth as usize),
            acceptance: acceptance.as_ref().map(|file| &file.acceptance[..]),
        };
        match file {
            None if tree.needs_acceptance() => Err(Usage::conflict(
                &[OptionName::Tree, OptionName::Acceptance],
                message![
                    "a sequoia tree is made from measured acceptances: give ",
                    OptionName::Acceptance.with("FILE"),
                    ", a file such as {\"acceptance\": [0.6, 0.15, 0.05]}: the probability that \
                     the first, second, .. distinct draft at a node is accepted",
                ],
            )),
            Some(file) => tree.choose(&choice).with_context(|| format!("{}", file.display())),
            None => Ok(tree.choose(&choice)?),
        }
    }

    /// Returns the tree of several drafts: one path from each.
    fn tree_of_drafts(&self, drafts: usize) -> Result<PolicyKind> {
        let each = format!("{drafts} drafts, or draft temperatures, draw one path each");
        let tree = match &self.tree {
            None => {
                let depth = self.depth.map_or(DEFAULT_DEPTH, |depth| depth as usize);
                PolicyKind::Distinct(Distinct { drafts, depth })
            }
            Some(TreeName::Complete(tree @ PolicyKind::Distinct(_))) if self.depth.is_none() => {
                tree.clone()
            }
            Some(tree) => {
                return Err(Usage::conflict(
                    &[OptionName::Tree, OptionName::Draft],
                    message![
                        each,
                        ", ",
                        OptionName::Tree.with(format_args!("distinct:{drafts},L")),
                        ": leave ",
                        OptionName::Tree.with(tree),
                        " out, or give one",
                    ],
                ));
            }
        };
        if self.paths.is_some_and(|paths| paths as usize != drafts) {
            return Err(Usage::conflict(
                &[OptionName::Paths, OptionName::Draft],
                message![each, ": leave ", OptionName::Paths, " out"],
            ));
        }
        Ok(tree)
    }

    /// Returns the default tree.
    fn default_tree(&self, verifier: &VerifierKind) -> PolicyKind {
        if self.paths.is_none() && self.depth.is_none() && self.stop_below.is_none() {
            return PolicyKind::default_for(verifier, 0);
        }
        let [paths, depth] = [self.paths, self.depth].map(|given| given.map(|n| n as usize));
        PolicyKind::paths_for(verifier, paths, depth)
    }

    /// Rejects options that contradict the given tree.
    fn check_tree(&self, tree: &TreeName) -> Result<()> {
        let conflict = |other: OptionName, message: Message| {
            Err(Usage::conflict(&[OptionName::Tree, other], message))
        };
        let tree = match tree {
            TreeName::StopBelow(_, cut) => cut,
            tree => tree,
        };
        if let TreeName::Complete(PolicyKind::Auto(auto)) = tree
            && (self.paths.is_some() || self.depth.is_some())
        {
            let depth = self.depth.map_or(auto.depth, |depth| depth as usize);
            return conflict(
                if self.paths.is_some() { OptionName::Paths } else { OptionName::Depth },
                message![
                    OptionName::Tree.with("auto"),
                    " chooses paths and depth: leave ",
                    OptionName::Paths,
                    " and ",
                    OptionName::Depth,
                    " out, or limit the number of drafted tokens with ",
                    OptionName::Tree.with(format_args!("auto:{depth}")),
                ],
            );
        }
        if self.paths.is_some() {
            return conflict(
                OptionName::Paths,
                message![
                    OptionName::Paths,
                    " and ",
                    OptionName::Tree,
                    " both define where the tree branches: give one",
                ],
            );
        }
        match tree {
            TreeName::Complete(_) | TreeName::Levels(_) if self.depth.is_some() => conflict(
                OptionName::Depth,
                message![
                    "this ",
                    OptionName::Tree,
                    " defines its own depth: leave ",
                    OptionName::Depth,
                    " out",
                ],
            ),
            TreeName::Complete(tree) if self.drafting.is_some() => conflict(
                OptionName::Drafting,
                message![
                    OptionName::Tree.with(tree),
                    " defines how its tokens are drawn: leave ",
                    OptionName::Drafting,
                    " out (with levels or fixed trees it is written after a slash, such as \
                     3,2,1/top-k)",
                ],
            ),
            _ if self.acceptance.is_some() && !tree.needs_acceptance() => Err(Usage::unused(
                OptionName::Acceptance,
                message![
                    OptionName::Acceptance,
                    " is for ",
                    OptionName::Tree.with("sequoia:N"),
                    ": it has no effect here",
                ],
            )),
            _ => Ok(()),
        }
    }
}

/// Checks that a tree of several drafts has the given number of drafts.
///
/// # Errors
/// [`Usage`] for a different number.
pub fn check_draft_count(tree: &PolicyKind, drafts: usize) -> Result<()> {
    match tree {
        PolicyKind::Distinct(distinct) if distinct.drafts != drafts => Err(Usage::conflict(
            &[OptionName::Tree, OptionName::DraftTemperature],
            message![
                OptionName::Tree.with(tree),
                format!(
                    " draws each of {} paths from a draft of its own: give as many temperatures, \
                     such as ",
                    distinct.drafts
                ),
                OptionName::DraftTemperature.with("0.6,1.2"),
                ", or as many drafts",
            ],
        )),
        _ => Ok(()),
    }
}

/// Makes an error of a verifier that does not support the tree, with verifiers and trees that would
/// work.
pub fn explain_incompatible(
    verifier: &VerifierKind,
    tree: &PolicyKind,
    error: anyhow::Error,
) -> anyhow::Error {
    let is_unsupported = matches!(error.downcast_ref(), Some(polydraft::Error::Unsupported { .. }))
        || matches!(
            error.downcast_ref(),
            Some(polydraft_engine::Error::Core(polydraft::Error::Unsupported { .. }))
        );
    let options = [OptionName::Verifier, OptionName::Tree];
    if !is_unsupported {
        return Usage::conflict(&options, format!("{verifier}: {error}").into());
    }
    let verifiers = tree.verifiers();
    let verifiers: Vec<Part> = verifiers.iter().map(|kind| kind.to_string().into()).collect();
    let trees = TreeName::examples_for(verifier);
    let trees = trees.into_iter().map(|tree| OptionName::Tree.with(tree));
    let mut message = Message::from(error.to_string());
    if !verifiers.is_empty() {
        message = message.and(["; verifiers for this tree: ".into()]).and(Message::list(verifiers));
    }
    for (number, tree) in trees.enumerate() {
        let before = match number {
            0 => format!("; trees for {verifier}, for example: "),
            _ => ", ".to_owned(),
        };
        message = message.and([before.into(), tree]);
    }
    Usage::conflict(&options, message)
}

#[cfg(test)]
mod tests {
    use polydraft::Drafting;

    use super::*;
    use crate::message::{command_line, keyword};
    use crate::usage::explain;

    fn options(verifier: &str, tree: Option<&str>) -> SpeculationOptions {
        SpeculationOptions {
            verifier: (verifier != "none").then(|| verifier.parse().expect("a verifier")),
            tree: tree.map(|tree| tree.parse().expect("a tree")),
            ..SpeculationOptions::default()
        }
    }

    fn resolve(options: &SpeculationOptions) -> Result<Option<Speculation>> {
        options.resolve(&SamplingOptions::default(), 1, None)
    }

    fn tree(options: &SpeculationOptions) -> String {
        resolve(options).unwrap().expect("speculation").tree.to_string()
    }

    #[test]
    fn default_tree_is_adaptive_unless_paths_or_depth_are_given() {
        assert_eq!(tree(&options("nested-priority", None)), "auto:64");
        assert_eq!(tree(&options("token", None)), "auto:64");
        let depth = |verifier| SpeculationOptions { depth: Some(4), ..options(verifier, None) };
        assert_eq!(tree(&depth("nested-priority")), "paths:2,4");
        assert_eq!(tree(&depth("block")), "paths:1,4");
    }

    #[test]
    fn rejects_draft_options_for_plain_decoding() -> Result<()> {
        assert_eq!(resolve(&options("none", None))?, None);
        let error = resolve(&options("none", Some("auto"))).unwrap_err();
        let usage = error.downcast_ref::<Usage>().expect("a usage error");
        assert_eq!(usage.options(), [OptionName::Tree]);
        assert_eq!(explain(&error, command_line), "--tree has no meaning with --verifier none");
        assert_eq!(explain(&error, keyword), "tree= has no meaning with verifier=\"none\"");
        Ok(())
    }

    #[test]
    fn refuses_options_that_contradict_the_tree() {
        let with = |tree: &str, change: fn(&mut SpeculationOptions)| {
            let mut options = options("nested-priority", Some(tree));
            change(&mut options);
            let error = resolve(&options).unwrap_err();
            assert!(error.is::<Usage>(), "{error:#}");
            explain(&error, command_line)
        };
        for (error, expected) in [
            (with("auto", |o| o.depth = Some(3)), "--tree auto:3"),
            (with("2,2", |o| o.paths = Some(2)), "--paths and --tree both define"),
            (with("2,2", |o| o.depth = Some(2)), "leave --depth out"),
            (with("paths:2,2", |o| o.drafting = Some(Drafting::Hub)), "leave --drafting out"),
            (with("2,2", |o| o.acceptance = Some("x".into())), "--tree sequoia:N"),
            (with("sequoia:4", |_| ()), "give --acceptance FILE"),
            (with("stop-below:0.2,sequoia:4", |_| ()), "give --acceptance FILE"),
            (with("stop-below:0.2,2,2", |o| o.depth = Some(2)), "leave --depth out"),
            (with("stop-below:0.2,auto", |o| o.depth = Some(2)), "leave --depth out"),
            (with("distinct:2,3", |_| ()), "--draft-temperature 0.6,1.2"),
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn suggests_verifiers_and_trees_that_would_work() {
        let error = resolve(&options("block", Some("paths:2,2"))).unwrap_err();
        let error = explain(&error, command_line);
        for expected in ["verifiers for this tree: ", "nested-priority", "--tree paths:1,3"] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let error = resolve(&options("walk:hub", Some("paths:2,2"))).unwrap_err();
        let error = explain(&error, command_line);
        assert!(error.contains("--tree 2,2/greedy"), "{error}");
    }

    #[test]
    fn takes_the_best_verifier_for_the_tree_if_none_is_named() -> Result<()> {
        let acceptance = tempfile::NamedTempFile::new()?;
        std::fs::write(acceptance.path(), r#"{"acceptance": [0.6, 0.2, 0.1]}"#)?;
        for (tree, drafting, verifier) in [
            ("paths:2,3", None, "nested-priority"),
            ("3,2,1", None, "nested-priority"),
            ("3,2,1/without-replacement", None, "pooled"),
            ("3,2,1/top-k", None, "pooled"),
            ("2,2/hub", None, "pooled"),
            ("2,2/greedy", None, "pooled"),
            ("sequoia:8", Some(Drafting::Hub), "walk:hub"),
            ("sequoia:8", Some(Drafting::WithoutReplacement), "traversal"),
            ("fixed:0,0,1", None, "traversal"),
        ] {
            let sequoia = tree.starts_with("sequoia").then(|| acceptance.path().to_owned());
            let named = SpeculationOptions {
                drafting,
                acceptance: sequoia,
                ..options("nested-priority", Some(tree))
            };
            let unnamed = SpeculationOptions { verifier_by_tree: true, ..named.clone() };
            let found = resolve(&unnamed)?.expect("speculation");
            assert_eq!(found.verifier.to_string(), verifier, "{tree}");
            assert_eq!(resolve(&named).is_ok(), verifier == "nested-priority", "{tree}");
        }
        // An error that is not about the verifier stays.
        let unnamed = SpeculationOptions {
            verifier_by_tree: true,
            ..options("nested-priority", Some("sequoia:4"))
        };
        let error = explain(&resolve(&unnamed).unwrap_err(), command_line);
        assert!(error.contains("give --acceptance FILE"), "{error}");
        Ok(())
    }

    #[test]
    fn draws_a_path_from_each_of_several_drafts() -> Result<()> {
        let sampling = SamplingOptions {
            draft_temperature: Some(0.6),
            further_draft_temperatures: vec![1.2],
            ..SamplingOptions::default()
        };
        let found = options("specinfer", None).resolve(&sampling, 1, None)?.expect("speculation");
        assert_eq!((found.tree.to_string(), found.each.len()), ("distinct:2,3".to_owned(), 2));
        let result = options("specinfer", Some("distinct:3,3")).resolve(&sampling, 1, None);
        assert!(explain(&result.unwrap_err(), command_line).contains("each of 3 paths"));
        Ok(())
    }
}
