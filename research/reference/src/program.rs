//! Linear programs and their solvers.
//!
//! Problem: maximise c·x over 0 ≤ x ≤ u with Ax ≤ b, where b ≥ 0 (x = 0 is feasible).
//! Source: microlp (pure Rust, simplex), or HiGHS (Huangfu and Hall 2018) with the feature `highs`.
//! Deviations: (1) solvers satisfy constraints to an absolute tolerance of 1e-10 or more, but
//! probabilities here may be smaller. So capacities are multiplied by 1e6, and solutions divided by
//! it. (2) HiGHS reports a program as infeasible if a capacity is below its tolerance, although x =
//! 0 is feasible. So such variables are set to 0, which costs at most their capacity, 1e-16.

use polydraft::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Solver of linear programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Solver {
    /// microlp, in pure Rust.
    #[default]
    Microlp,
    /// HiGHS, the solver of the published tables; needs the feature `highs`.
    Highs,
}

impl Solver {
    /// Best available solver: HiGHS with the feature `highs`, else microlp.
    pub const BEST: Self = if cfg!(feature = "highs") { Self::Highs } else { Self::Microlp };

    /// Returns the name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Microlp => "microlp",
            Self::Highs => "highs",
        }
    }

    /// Checks that the solver is available.
    ///
    /// # Errors
    /// HiGHS without the feature `highs`.
    pub fn validate(self) -> Result<()> {
        if self == Self::Highs && !cfg!(feature = "highs") {
            return Err(Error::Setting {
                setting: "solver",
                expected: "microlp, for this program was built without the feature highs",
                got: "highs".to_owned(),
            });
        }
        Ok(())
    }
}

/// Time limit of a solver.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    end: Option<Instant>,
    seconds: f64,
}

impl Deadline {
    /// Creates a deadline in `seconds` seconds, at least 0. Times too long to represent mean no
    /// limit.
    pub fn after(seconds: f64) -> Self {
        let duration = Duration::try_from_secs_f64(seconds).ok();
        Self { end: duration.and_then(|duration| Instant::now().checked_add(duration)), seconds }
    }

    /// Returns the remaining time; `None` without a limit.
    pub fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Returns the error of a solver that exceeded its time limit.
    pub fn error(&self, operation: &'static str) -> Error {
        Error::Solver {
            operation,
            got: format!("none within {} s (setting seconds)", self.seconds),
        }
    }
}

/// Checks a setting `seconds`.
pub(crate) fn check_seconds(seconds: f64) -> Result<()> {
    if seconds > 0.0 {
        return Ok(());
    }
    Err(Error::Setting { setting: "seconds", expected: "above 0", got: seconds.to_string() })
}

/// Linear program: maximise `objective`·x over 0 ≤ x ≤ `upper`, with rows Σ coefficient·x ≤ bound.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    objective: Vec<f64>,
    upper: Vec<f64>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Default)]
struct Row {
    entries: Vec<(usize, f64)>,
    bound: f64,
}

/// Factor that raises probabilities above the solvers' absolute tolerances.
const SCALE: f64 = 1e6;

/// Tolerance of constraints after scaling: the minimum that HiGHS accepts.
const TOLERANCE: f64 = 1e-10;

impl Program {
    /// Adds a variable and returns its index.
    pub fn variable(&mut self, objective: f64, upper: f64) -> usize {
        self.objective.push(objective);
        self.upper.push(upper);
        self.objective.len() - 1
    }

    /// Adds Σ coefficient·x ≤ `bound`.
    pub fn at_most(&mut self, entries: Vec<(usize, f64)>, bound: f64) {
        self.rows.push(Row { entries, bound });
    }

    /// Returns the optimal x within the solver's tolerances; callers that need exact constraints
    /// enforce them afterwards.
    pub fn solve(
        &self,
        operation: &'static str,
        solver: Solver,
        deadline: Deadline,
    ) -> Result<Vec<f64>> {
        solver.validate()?;
        if self.objective.is_empty() {
            return Ok(Vec::new());
        }
        let mut values = match solver {
            Solver::Microlp => self.microlp(operation, deadline)?,
            #[cfg(feature = "highs")]
            Solver::Highs => self.highs(operation, deadline)?,
            #[cfg(not(feature = "highs"))]
            Solver::Highs => Vec::new(), // `validate` has refused it
        };
        values.iter_mut().for_each(|value| *value /= SCALE);
        Ok(values)
    }

    fn microlp(&self, operation: &'static str, deadline: Deadline) -> Result<Vec<f64>> {
        use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOptions, SolveOutcome};
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let variables: Vec<_> = self
            .objective
            .iter()
            .zip(&self.upper)
            .map(|(objective, upper)| problem.add_var(*objective, (0.0, upper * SCALE)))
            .collect();
        for row in &self.rows {
            let entries =
                row.entries.iter().map(|&(index, coefficient)| (variables[index], coefficient));
            problem.add_constraint(
                entries.collect::<Vec<_>>(),
                ComparisonOp::Le,
                row.bound * SCALE,
            );
        }
        let mut options = SolveOptions::default();
        options.time_limit = deadline.left();
        options.tolerances.feasibility = TOLERANCE;
        match problem.solve_with(options) {
            Ok(SolveOutcome::Solution(solution))
                if solution.status() == microlp::SolutionStatus::Optimal =>
            {
                Ok(variables.iter().map(|variable| solution[*variable]).collect())
            }
            Ok(_) => Err(deadline.error(operation)),
            Err(error) => Err(Error::Solver { operation, got: error.to_string() }),
        }
    }

    #[cfg(feature = "highs")]
    fn highs(&self, operation: &'static str, deadline: Deadline) -> Result<Vec<f64>> {
        use highs::{HighsModelStatus, RowProblem, Sense};
        let mut problem = RowProblem::default();
        let columns: Vec<_> = self
            .objective
            .iter()
            .zip(&self.upper)
            .map(|(objective, upper)| {
                let upper = upper * SCALE;
                problem.add_column(*objective, 0.0..=if upper < TOLERANCE { 0.0 } else { upper })
            })
            .collect();
        for row in &self.rows {
            let entries: Vec<_> =
                row.entries.iter().map(|&(index, c)| (columns[index], c)).collect();
            problem.add_row(..=row.bound * SCALE, &entries);
        }
        let failed = |got: String| Error::Solver { operation, got };
        let mut model =
            problem.try_optimise(Sense::Maximise).map_err(|e| failed(format!("{e:?}")))?;
        model.make_quiet();
        if let Some(left) = deadline.left() {
            model.set_option("time_limit", left.as_secs_f64());
        }
        // One thread, like all other solvers.
        model.set_option("threads", 1);
        model.set_option("primal_feasibility_tolerance", TOLERANCE);
        model.set_option("dual_feasibility_tolerance", TOLERANCE);
        let solved = model.try_solve().map_err(|e| failed(format!("{e:?}")))?;
        match solved.status() {
            HighsModelStatus::Optimal => Ok(solved.get_solution().columns().to_vec()),
            HighsModelStatus::ReachedTimeLimit => Err(deadline.error(operation)),
            other => Err(failed(format!("{other:?}"))),
        }
    }
}
