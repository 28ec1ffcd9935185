//! Pooled layers whose flows are the optimum of a linear program.
//!
//! Problem: as in `polydraft`'s verifier `pooled`, but every layer passes on as much as any flows
//! can, whatever the draws: i.i.d., without replacement, hub, greedy, top-k and distinct ones.
//! Source: ours; `docs/theory.md`, section 14. Method: one variable for every drawn child and every
//! combination of what may be drawn below the layer.
//! Complexity: exponential in the nodes of a layer; for tiny vocabularies. Programs are kept, so
//! that an enumeration solves each once.

use std::collections::{BTreeMap, HashMap};

use polydraft::draft::{Form, NodeId};
use polydraft::verify::{Outcome, TargetDistributions};
use polydraft::{Distribution, Draft, DraftTree, RandomSource, Result, Token, Verifier};

use crate::program::{Deadline, Program, Solver};

/// Seconds for one program.
const SECONDS: f64 = 60.0;

/// The verifier.
#[derive(Debug, Default)]
pub struct PooledProgram {
    known: HashMap<Vec<u64>, Flows>,
}

/// Flows to drawn tokens, by node and token.
type Shares = BTreeMap<(usize, Token), f64>;

/// Flows of one layer, by combination of drawn sets.
#[derive(Debug, Clone, Default)]
struct Flows {
    /// By combination: the flow to each drawn token of each node.
    by_draws: BTreeMap<Vec<Vec<Token>>, Shares>,
    /// What the expected flows leave, by node and token.
    left: Vec<Vec<f64>>,
}

/// A node of a layer.
struct Member {
    node: NodeId,
    weight: f64,
    drawn: Vec<Token>,
}

impl Member {
    fn new(draft: &Draft, node: NodeId, weight: f64) -> Self {
        let tree = draft.tree();
        let mut drawn: Vec<Token> = tree.children(node).map(|child| tree.token(child)).collect();
        drawn.sort_unstable();
        Self { node, weight, drawn }
    }
}

/// Probability of every set of tokens that may be drawn at a node.
fn sets(draft: &Draft, node: NodeId) -> BTreeMap<Vec<Token>, f64> {
    let mut sets = BTreeMap::new();
    let tuples = draft.proposal(node).map(|proposal| proposal.tuples());
    for (probability, mut tokens) in tuples.unwrap_or_else(|| vec![(1.0, Vec::new())]) {
        tokens.sort_unstable();
        tokens.dedup();
        *sets.entry(tokens).or_insert(0.0) += probability;
    }
    sets
}

/// Combinations of one set for each node, with their probabilities.
fn combinations(sets: &[BTreeMap<Vec<Token>, f64>]) -> Vec<(Vec<Vec<Token>>, f64)> {
    sets.iter().fold(vec![(Vec::new(), 1.0)], |all, sets| {
        all.iter()
            .flat_map(|(chosen, p): &(Vec<Vec<Token>>, f64)| {
                sets.iter()
                    .map(move |(set, q)| ([&chosen[..], std::slice::from_ref(set)].concat(), p * q))
            })
            .collect()
    })
}

impl Flows {
    /// Solves the program of a layer: the demands by node and token, and what may be drawn.
    fn new(demands: Vec<Vec<f64>>, sets: &[BTreeMap<Vec<Token>, f64>]) -> Result<Self> {
        let combinations = combinations(sets);
        let mut program = Program::default();
        let mut by_demand: BTreeMap<(usize, Token), Vec<(usize, f64)>> = BTreeMap::new();
        let mut variables = Vec::new();
        for (chosen, probability) in &combinations {
            let mut row = Vec::new();
            for (node, set) in chosen.iter().enumerate() {
                for &token in set {
                    let most = demands[node][token as usize].min(*probability);
                    let variable = program.variable(1.0, most);
                    row.push((variable, 1.0));
                    by_demand.entry((node, token)).or_default().push((variable, 1.0));
                    variables.push((node, token));
                }
            }
            program.at_most(row, *probability);
        }
        for ((node, token), row) in by_demand {
            program.at_most(row, demands[node][token as usize]);
        }
        let masses = program.solve("pooled layers", Solver::BEST, Deadline::after(SECONDS))?;
        // Shares within what the solver's tolerance leaves, and their true expectations.
        let mut expected = demands.iter().map(|row| vec![0.0; row.len()]).collect::<Vec<_>>();
        let (mut at, mut by_draws) = (0, BTreeMap::new());
        for (chosen, probability) in combinations {
            let count: usize = chosen.iter().map(Vec::len).sum();
            let own: Vec<f64> = masses[at..at + count].iter().map(|mass| mass.max(0.0)).collect();
            let scale = (probability / own.iter().sum::<f64>()).min(1.0);
            let mut flows = BTreeMap::new();
            for (key, mass) in variables[at..at + count].iter().zip(own) {
                let mass = mass * if scale.is_finite() { scale } else { 0.0 };
                expected[key.0][key.1 as usize] += mass;
                flows.insert(*key, if probability > 0.0 { mass / probability } else { 0.0 });
            }
            at += count;
            by_draws.insert(chosen, flows);
        }
        let fraction = |(node, token): (usize, Token)| {
            let (mass, demand) = (expected[node][token as usize], demands[node][token as usize]);
            if mass > demand { demand / mass } else { 1.0 }
        };
        for flows in by_draws.values_mut() {
            flows.iter_mut().for_each(|(key, flow)| *flow *= fraction(*key));
        }
        let left = demands.iter().zip(&expected).map(|(demands, expected)| {
            demands.iter().zip(expected).map(|(d, e)| (d - e).max(0.0)).collect()
        });
        Ok(Self { left: left.collect(), by_draws })
    }
}

impl PooledProgram {
    /// Flows of a layer.
    fn flows(
        &mut self,
        members: &[Member],
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> Result<Flows> {
        let mut demands = Vec::new();
        let mut key = Vec::new();
        for member in members {
            let target = target.target(member.node)?.to_vec();
            let demand: Vec<f64> = target.iter().map(|p| member.weight * p).collect();
            key.extend(demand.iter().map(|d| d.to_bits()));
            let draws = draft.draws(member.node);
            key.extend(draws.map(|draws| draws.count as u64 * 16 + draws.scheme as u64));
            let proposal = draft.proposal(member.node);
            let count = proposal.map_or(0, |proposal| proposal.count());
            let drafts = (0..count).filter_map(|index| Some(proposal?.distribution(index)));
            key.extend(drafts.flat_map(Distribution::to_vec).map(f64::to_bits));
            demands.push(demand);
        }
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let sets: Vec<_> = members.iter().map(|member| sets(draft, member.node)).collect();
        let flows = Flows::new(demands, &sets)?;
        self.known.insert(key, flows.clone());
        Ok(flows)
    }
}

impl Verifier for PooledProgram {
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("pooled layers", "draws without shared randomness", true)
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let tree = draft.tree();
        let mut layers = vec![vec![Member::new(draft, DraftTree::ROOT, 1.0)]];
        let mut left = Vec::new();
        while let Some(members) = layers.last().filter(|members| !members.is_empty()) {
            let flows = self.flows(members, draft, target)?;
            let drawn: Vec<Vec<Token>> =
                members.iter().map(|member| member.drawn.clone()).collect();
            let shares = &flows.by_draws[&drawn];
            let mut next = Vec::new();
            for (index, member) in members.iter().enumerate() {
                for child in tree.children(member.node) {
                    let weight = shares.get(&(index, tree.token(child))).copied().unwrap_or(0.0);
                    if weight > 0.0 {
                        next.push(Member::new(draft, child, weight));
                    }
                }
            }
            left.push(flows.left);
            layers.push(next);
        }
        for depth in (0..left.len()).rev() {
            let above = 1.0 - layers[depth].iter().map(|member| member.weight).sum::<f64>();
            let rest: f64 = left[depth].iter().flatten().sum();
            let stops = depth == 0 || rng.coin((rest / (rest + above.max(0.0))).clamp(0.0, 1.0));
            if rest <= 0.0 || !stops {
                continue;
            }
            let all: Vec<f64> = left[depth].iter().map(|left| left.iter().sum()).collect();
            let index = rng.pick(&all);
            let mut node = layers[depth][index].node;
            let mut token = rng.pick(&left[depth][index]) as Token;
            while let Some(child) = tree.child(node, token) {
                node = child;
                token = target.target(node)?.sample(rng);
            }
            return Ok(Outcome { accepted: tree.path(node), token });
        }
        // Everything flows on, but for rounding.
        Ok(Outcome { accepted: Vec::new(), token: target.target(DraftTree::ROOT)?.sample(rng) })
    }
}
