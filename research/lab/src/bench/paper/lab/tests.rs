use std::collections::BTreeMap;

use polydraft::conformance::tree::{ContextDistributions, exact};
use polydraft::{Distribution, PolicyKind};
use polydraft_engine::{Model, ModelDrafter, TableModel};

use super::*;

const TARGET: [f64; 3] = [0.6, 0.3, 0.1];
const DRAFT: [f64; 3] = [0.3, 0.3, 0.4];
/// Sampling settings and seed.
const HOW: (Sampling, u64) =
    (Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }, 1);

/// A model with the same distribution in every context.
struct Always(Distribution);

impl ContextDistributions for Always {
    fn distribution(&self, _: &[Token]) -> polydraft::Result<&Distribution> {
        Ok(&self.0)
    }
}

fn engine() -> Engine {
    let table = |name, probs: [f64; 3]| {
        TableModel::new(name, 3, BTreeMap::from([(Vec::new(), probs.to_vec())])).expect("a table")
    };
    let target = table("target", TARGET);
    let drafter = ModelDrafter::new(Box::new(table("draft", DRAFT)), &target.info().vocabulary);
    Engine::new(Box::new(target), Some(Box::new(drafter.expect("a drafter"))))
}

fn probs(probs: [f64; 3]) -> Distribution {
    Distribution::new(probs.to_vec()).expect("a distribution")
}

/// Acceptance rates on table models equal the formulas, to the precision of a model's logits.
#[test]
fn acceptances_are_exact_on_tables() {
    let pairs =
        distributions::of_models(&mut engine(), &[vec![0], vec![1, 2]], 10, 8, HOW).expect("pairs");
    assert_eq!(pairs.len(), 10);
    let node = |rule: Option<&str>, count| Node {
        row: String::new(),
        column: String::new(),
        rule: rule.map(|rule| polydraft_reference::rule(rule).expect("a rule")),
        draws: Draws::iid(count),
        target: Sampling::default(),
        drafts: vec![Sampling::default()],
        rank: None,
    };
    let (target, draft) = (probs(TARGET), probs(DRAFT));
    for pair in &pairs {
        let value_of =
            |rule, count| acceptance_at(&node(rule, count), pair, 0).expect("an acceptance");
        // Σ min(p, q); for two drafts 1 + min over H of p(H) − q(H)².
        assert!(
            (value_of(None, 1) - 0.7).abs() < 1e-6
                && (value_of(Some("single"), 1) - 0.7).abs() < 1e-6
        );
        let best = 1.0
            + [0.0, 0.1 - 0.4_f64.powi(2), 0.4 - 0.7_f64.powi(2)].into_iter().fold(0.0, f64::min);
        assert!(
            (value_of(None, 2) - best).abs() < 1e-6
                && (value_of(Some("priority"), 2) - best).abs() < 1e-6
        );
        for rule in ["k-seq", "recursive", "naive"] {
            let mut rule_at_work =
                polydraft_reference::rule(rule).expect("a rule").build().expect("built");
            let problem = Problem::new(&target, Proposal::iid(&draft, 2).expect("drafts"))
                .expect("a problem");
            let mut coupling = couple(rule_at_work.as_mut(), problem).expect("coupled");
            let expected = coupling.acceptance(&mut seeded(0)).probability;
            assert!((value_of(Some(rule), 2) - expected).abs() < 1e-6, "{rule}");
        }
    }
}

/// The acceptance rates of the first and the second draft sum to the total.
#[test]
fn drafts_add_up() {
    let pair = &distributions::of_models(&mut engine(), &[vec![0]], 1, 8, HOW).expect("a pair")[0];
    let value_of = |rank| {
        let node = Node {
            row: String::new(),
            column: String::new(),
            rule: Some(polydraft_reference::rule("hub").expect("a rule")),
            draws: Draws { scheme: polydraft::Drafting::Hub, count: 2 },
            target: Sampling::default(),
            drafts: vec![Sampling::default()],
            rank,
        };
        let each = (0..400).map(|seed| acceptance_at(&node, pair, seed).expect("an acceptance"));
        each.sum::<f64>() / 400.0
    };
    let (first, second, both) = (value_of(Some(0)), value_of(Some(1)), value_of(None));
    assert!((first + second - both).abs() < 0.02, "{first} {second} {both}");
    assert!(first > 0.1 && second > 0.1);
}

/// Tokens per call on table models equal enumeration.
#[test]
fn efficiencies_equal_enumeration() {
    let verifiers = ["nested-priority", "specinfer", "spectr", "traversal", "greedy-block"];
    let tree = PolicyKind::paths(2, 2);
    let case =
        Case::new("K = 2, L = 2", tree.clone(), Sampling::default(), &verifiers).expect("a case");
    let plan = Extent {
        positions: 3000,
        drafts: 2,
        every: 1,
        max_tokens: 50,
        seed: 1,
        steps_of: None,
        end: None,
    };
    let mut table = Table::new("efficiency", "", 3);
    efficiencies(&plan, &mut engine(), &[vec![0], vec![1]], &[case], &|| true, &mut table)
        .expect("measured");
    assert_eq!(table.entries.len(), verifiers.len());
    for entry in &table.entries {
        let mut verifier = polydraft_reference::verifier(&entry.column)
            .expect("a name")
            .build()
            .expect("a verifier");
        let policy = tree.build().expect("a policy");
        let (target, draft) = (Always(probs(TARGET)), Always(probs(DRAFT)));
        let found = exact(verifier.as_mut(), policy.as_ref(), &target, &draft, &mut |_| ());
        let expected = found.expect("enumerated").block_efficiency;
        let (got, error) = (entry.ours.value, entry.ours.error.expect("an error"));
        assert!(error < 0.02 && (got - expected).abs() < 5.0 * error, "{entry:?} {expected}");
    }
}

/// At the steps of a verifier the result is the same if distributions do not depend on the context.
#[test]
fn steps_of_a_verifier() {
    let tree = PolicyKind::paths(2, 2);
    let kinds = ["nested-priority", "block"]
        .map(|name| polydraft_reference::verifier(name).expect("a name"));
    let mut means = Vec::new();
    for steps_of in [None, Some(kinds[0].clone()), Some(kinds[1].clone())] {
        let sampling = Sampling::default();
        let setting = Setting::new(tree.clone(), sampling, sampling, 3, &kinds).expect("a setting");
        let plan = Extent {
            positions: 2000,
            drafts: 3,
            every: 1,
            max_tokens: 50,
            seed: 2,
            steps_of,
            end: None,
        };
        let mut settings = [setting];
        verifiers::measure(&plan, &mut engine(), &[vec![0]], &mut settings, &|| true)
            .expect("measured");
        let measured = verifiers::compared(&settings[0]);
        // At least the requested number of positions, up to the end of the round.
        assert!((2000..2050).contains(&measured.positions), "{}", measured.positions);
        means.push(measured.verifiers.iter().map(|row| row.block_efficiency).collect());
    }
    let close = |a: &Vec<f64>, b: &Vec<f64>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.05);
    assert!(close(&means[0], &means[1]) && close(&means[0], &means[2]), "{means:?}");
}

/// A call without a draft counts as a call with one token and no nodes. A single sequence has no
/// error, and its record can be read.
#[test]
fn calls_without_a_draft_count() {
    let tree: PolicyKind = "stop-below:1,paths:2,2".parse().expect("a tree");
    let sampling = Sampling::default();
    let kinds = ["nested-priority", "specinfer"].map(|name| name.parse().expect("a name"));
    let setting = Setting::new(tree, sampling, sampling, 1, &kinds).expect("a setting");
    let plan = Extent {
        positions: 1,
        drafts: 1,
        every: 4,
        max_tokens: 12,
        seed: 2,
        steps_of: None,
        end: None,
    };
    let mut settings = [setting];
    verifiers::measure(&plan, &mut engine(), &[vec![0]], &mut settings, &|| true)
        .expect("measured");
    let measured = verifiers::compared(&settings[0]);
    assert_eq!((measured.positions, measured.nodes_per_call), (6, 0.0));
    assert!(measured.verifiers.iter().all(|row| row.block_efficiency == 1.0), "{measured:?}");
    settings[0].samples.truncate(1);
    let measured = verifiers::compared(&settings[0]);
    assert_eq!(measured.verifiers[1].block_efficiency_error, None);
    let record = serde_json::to_string(&measured).expect("JSON");
    assert!(serde_json::from_str::<verifiers::Compared>(&record).is_ok(), "{record}");
}
