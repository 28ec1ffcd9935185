//! What the options of speculation result in, and which tree they mean.

use std::path::Path;

use anyhow::{Context, Result};
use polydraft::policy::{Auto, Distinct, Fixed, StopBelow};
use polydraft::{Drafting, PolicyKind, Topology, VerifierKind};

use crate::tree::{AcceptanceFile, TreeName, supports};
use crate::{SamplingOptions, Speculation, SpeculationOptions, Usage};

/// Draft length where none is given, and the paths of verifiers that take several: with the demo
/// pair's tokens per pass and the pass costs of a model that is bound by memory, the most tokens
/// per second among trees of up to eight nodes.
const DEPTH: usize = 3;
const PATHS: usize = 2;
impl SpeculationOptions {
    /// The settings of these options; none is plain decoding. `demo` are the acceptances of the
    /// demo pair if it is used, and `drafts` says how many drafts there are.
    ///
    /// # Errors
    /// Options that contradict each other, or a verifier that is not exact for the tree; the
    /// message names what would fit.
    pub fn resolve(
        &self,
        sampling: &SamplingOptions,
        drafts: usize,
        demo: Option<&Path>,
    ) -> Result<Option<Speculation>> {
        let Some(verifier) = &self.verifier else {
            let given = [
                ("--paths", self.paths.is_some()),
                ("--depth", self.depth.is_some()),
                ("--tree", self.tree.is_some()),
                ("--stop-below", self.stop_below.is_some()),
                ("--costs", self.costs.is_some()),
            ];
            let given = given.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
            if let Some(option) = given.or(sampling.of_draft()) {
                return Err(Usage::error(format_args!(
                    "{option} has no meaning with --verifier none"
                )));
            }
            return Ok(None);
        };
        let each = sampling.each(drafts)?;
        let mut tree = match each.len() {
            0 => tree_of(self, verifier, demo)?,
            drafts => of_each(self, drafts)?,
        };
        if let PolicyKind::Distinct(own) = &tree
            && own.drafts != each.len()
        {
            return Err(Usage::error(format_args!(
                "--tree {tree} draws each of {} paths from a draft of its own: give as many \
                 temperatures, such as --draft-temperature 0.6,1.2, or as many drafts",
                own.drafts
            )));
        }
        if let Some(below) = self.stop_below {
            tree = PolicyKind::StopBelow(StopBelow {
                below,
                of: Box::new(tree),
                ..StopBelow::default()
            });
        }
        let speculation =
            Speculation { verifier: verifier.clone(), tree, sampling: sampling.draft(), each };
        speculation
            .build()
            .map_err(|error| Usage::error(advise(verifier, &speculation.tree, error)))?;
        Ok(Some(speculation))
    }
}

/// The error of a verifier that does not fit the tree, with verifiers and trees that would.
fn advise(verifier: &VerifierKind, tree: &PolicyKind, error: anyhow::Error) -> String {
    let unfit = matches!(error.downcast_ref(), Some(polydraft::Error::Unsupported { .. }))
        || matches!(
            error.downcast_ref(),
            Some(polydraft_engine::Error::EmittedDistribution(
                polydraft::Error::Unsupported { .. }
            ))
        );
    if !unfit {
        return format!("{verifier}: {error}");
    }
    let all = VerifierKind::all();
    // A verifier whose output does not depend on the draft is only for users who ask for that.
    let usual = |kind: &&VerifierKind| {
        kind.build().is_ok_and(|verifier| !verifier.uses_shared_randomness())
    };
    let verifiers =
        all.iter().filter(usual).filter(|other| supports(other, tree)).map(VerifierKind::to_string);
    let chain = supports(verifier, &PolicyKind::chain(1)).then(|| "--paths 1".to_owned());
    let levels = Drafting::ALL
        .into_iter()
        .filter(|drafting| supports(verifier, &PolicyKind::levels(&[2, 2], *drafting)));
    let levels = levels.map(|drafting| format!("--tree 2,2 --drafting {drafting}"));
    let list = |what: String, all: Vec<String>| match all.is_empty() {
        true => String::new(),
        false => format!("; {what}: {}", all.join(", ")),
    };
    format!(
        "{error}{}{}",
        list("verifiers for this tree".to_owned(), verifiers.collect()),
        list(
            format!("trees for {verifier}, for example"),
            chain.into_iter().chain(levels).collect()
        )
    )
}

/// The tree of these options, for this verifier; `demo` are the acceptances of the demo pair if it
/// is used.
fn tree_of(
    options: &SpeculationOptions,
    verifier: &VerifierKind,
    demo: Option<&Path>,
) -> Result<PolicyKind> {
    let depth = options.depth.map_or(DEPTH, |depth| depth as usize);
    let Some(tree) = &options.tree else { return Ok(unnamed(options, verifier, depth)) };
    contradictions(options, tree)?;
    match tree {
        TreeName::Levels(counts) => {
            Ok(drafted(options, verifier, &|drafting| PolicyKind::levels(counts, drafting)))
        }
        TreeName::Whole(tree) => Ok(tree.clone()),
        TreeName::Ary(count) => Ok(drafted(options, verifier, &|drafting| {
            PolicyKind::levels(&vec![*count; depth], drafting)
        })),
        TreeName::Sequoia(nodes) => {
            let file = options.acceptance.as_deref().or(demo).ok_or_else(|| {
                Usage::error(
                    "a sequoia tree needs measured acceptances: make them with 'polydraft-lab \
                     bench acceptance --save FILE', then give --acceptance FILE",
                )
            })?;
            let depth = options.depth.map_or(*nodes, |depth| depth as usize);
            let topology =
                Topology::sequoia(&AcceptanceFile::read(file)?.acceptance, *nodes, depth)
                    .with_context(|| format!("{}", file.display()))?;
            let parents = topology.parents();
            let of = |drafting| PolicyKind::Fixed(Fixed { parents: parents.clone(), drafting });
            Ok(drafted(options, verifier, &of))
        }
    }
}

/// The tree of so many drafts: a path from each.
fn of_each(options: &SpeculationOptions, drafts: usize) -> Result<PolicyKind> {
    let tree = match &options.tree {
        None => {
            let depth = options.depth.map_or(DEPTH, |depth| depth as usize);
            PolicyKind::Distinct(Distinct { drafts, depth })
        }
        Some(TreeName::Whole(tree @ PolicyKind::Distinct(_))) if options.depth.is_none() => {
            tree.clone()
        }
        Some(tree) => {
            return Err(Usage::error(format_args!(
                "{drafts} drafts, or draft temperatures, draw one path each, --tree \
                 distinct:{drafts},L: leave --tree {tree} out, or give one"
            )));
        }
    };
    if options.paths.is_some_and(|paths| paths as usize != drafts) {
        return Err(Usage::error(format_args!(
            "{drafts} drafts, or draft temperatures, draw one path each: leave --paths out"
        )));
    }
    Ok(tree)
}

/// The tree where none is named.
fn unnamed(options: &SpeculationOptions, verifier: &VerifierKind, depth: usize) -> PolicyKind {
    let given = options.paths.is_some() || options.depth.is_some() || options.stop_below.is_some();
    if let Some(auto) = adaptive(verifier).filter(|_| !given) {
        return auto;
    }
    let usual = || if supports(verifier, &PolicyKind::paths(PATHS, 1)) { PATHS } else { 1 };
    PolicyKind::paths(options.paths.map_or_else(usual, |paths| paths as usize), depth)
}

/// Options that do not go with the tree that is named.
fn contradictions(options: &SpeculationOptions, tree: &TreeName) -> Result<()> {
    if let TreeName::Whole(PolicyKind::Auto(auto)) = tree
        && (options.paths.is_some() || options.depth.is_some())
    {
        let (paths, depth) = (
            options.paths.map_or(auto.paths, |k| k as usize),
            options.depth.map_or(auto.depth, |l| l as usize),
        );
        return Err(Usage::error(format_args!(
            "--tree auto chooses paths and depth: leave --paths and --depth out, or say how many \
             at most, --tree auto:{paths},{depth}"
        )));
    }
    if options.paths.is_some() {
        return Err(Usage::error(
            "--paths and --tree both define where the tree branches: give one",
        ));
    }
    match tree {
        TreeName::Whole(_) | TreeName::Levels(_) if options.depth.is_some() => {
            Err(Usage::error("this --tree says how deep it is: leave --depth out"))
        }
        TreeName::Whole(tree) if options.drafting.is_some() => Err(Usage::error(format_args!(
            "--tree {tree} says how its tokens are drawn: leave --drafting out (with levels or \
             fixed trees it is written after a slash, such as 3,2,1/top-k)"
        ))),
        _ if options.acceptance.is_some() && !matches!(tree, TreeName::Sequoia(_)) => {
            Err(Usage::error(
                "--acceptance is what --tree sequoia:N is made from: it has no meaning here",
            ))
        }
        _ => Ok(()),
    }
}

/// The tree with the drafting that was asked for, or with the first that the verifier supports.
fn drafted(
    options: &SpeculationOptions,
    verifier: &VerifierKind,
    of: &dyn Fn(Drafting) -> PolicyKind,
) -> PolicyKind {
    // A tree that is laid down beforehand wastes no position on a token that is drawn again.
    let laid = matches!(of(Drafting::WithoutReplacement), PolicyKind::Fixed(_));
    let first = laid.then_some(Drafting::WithoutReplacement);
    let find = |fits: &dyn Fn(&PolicyKind) -> bool| {
        first.into_iter().chain(Drafting::ALL).find(|drafting| fits(&of(*drafting)))
    };
    // Where the verifier supports none, one that the tree can be drawn by: then the error is about
    // the verifier.
    let any =
        || find(&|tree| supports(verifier, tree)).or_else(|| find(&|tree| tree.build().is_ok()));
    of(options.drafting.or_else(any).unwrap_or(Drafting::Iid))
}

/// The adaptive tree, if the verifier is exact for such trees.
fn adaptive(verifier: &VerifierKind) -> Option<PolicyKind> {
    let of = |paths| PolicyKind::Auto(Auto { paths, ..Auto::default() });
    [Auto::default().paths, 1].into_iter().map(of).find(|tree| supports(verifier, tree))
}
