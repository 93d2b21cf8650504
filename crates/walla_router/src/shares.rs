//! Shares of a device's frame budget.

use std::time::Duration;

/// An engine that uses a device of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub weight: f32,
    /// It has open replies, or agents to evaluate in the background.
    pub has_work: bool,
}

/// The budget of each engine on one device: the total, divided among the engines with work in
/// proportion to their weights. An engine without work gets the share that it would have with work,
/// so that its first step does not wait for the next division.
pub(crate) fn divide(total: Duration, engines: &[Use]) -> Vec<Duration> {
    let weight = |engine: &Use| f64::from(engine.weight.max(0.0));
    let of_working = |engine: &&Use| engine.has_work;
    let working: f64 = engines.iter().filter(of_working).map(weight).sum();
    let budget = |engine: &Use| {
        let sum = if engine.has_work { working } else { working + weight(engine) };
        if sum > 0.0 { total.mul_f64((weight(engine) / sum).min(1.0)) } else { Duration::ZERO }
    };
    engines.iter().map(budget).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(engines: &[(f32, bool)]) -> Vec<u128> {
        let uses: Vec<_> =
            engines.iter().map(|&(weight, has_work)| Use { weight, has_work }).collect();
        divide(Duration::from_millis(6), &uses).iter().map(Duration::as_micros).collect()
    }

    #[test]
    fn engines_with_work_divide_the_budget_by_weight() {
        assert_eq!(shares(&[(1.0, true), (1.0, true)]), [3_000, 3_000]);
        assert_eq!(shares(&[(2.0, true), (1.0, true)]), [4_000, 2_000]);
        assert_eq!(shares(&[(2.0, true), (1.0, false)]), [6_000, 2_000]);
        assert_eq!(shares(&[(2.0, false), (1.0, false)]), [6_000, 6_000]);
        assert_eq!(shares(&[(0.0, true), (1.0, true)]), [0, 6_000]);
        assert_eq!(shares(&[(0.0, true)]), [0]);
    }

    #[test]
    fn the_budgets_of_working_engines_never_exceed_the_total() {
        for working in 0..8_u32 {
            let engines: Vec<_> =
                (0..3).map(|n| (1.5 + n as f32, working & (1 << n) != 0)).collect();
            let parts = shares(&engines);
            let sum: u128 = parts
                .iter()
                .zip(&engines)
                .filter(|(_, (_, works))| *works)
                .map(|(part, _)| part)
                .sum();
            assert!(sum <= 6_000, "{parts:?}");
            assert!(working == 0 || sum >= 5_995, "{parts:?}");
        }
    }
}
