//! Shares of a device's frame budget.

use std::time::Duration;

use walla_runtime::FrameBudget;

use crate::child::{Child, Key};
use crate::state::State;

/// The properties of an engine that decide about the division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    key: Key,
    has_device: bool,
    weight: f32,
    has_work: bool,
}

impl Child {
    fn share(&mut self) -> Share {
        let (key, weight, has_work) = (self.key, self.weight, self.has_work());
        Share { key, has_device: self.find_device().is_some(), weight, has_work }
    }
}

impl State {
    /// Divides the budget among engines on the same device, if it has changed, or the engines with
    /// work have.
    pub fn share_budget(&mut self) {
        let Some(total) = self.budget else { return };
        let shares = self.children.iter_mut().map(Child::share);
        if self.shared == Some(total) && shares.eq(self.sharing.iter().copied()) {
            return;
        }
        self.shared = Some(total);
        self.sharing.clear();
        self.sharing.extend(self.children.iter_mut().map(Child::share));
        for at in 0..self.children.len() {
            let Some((name, is_gpu)) = &self.children[at].device else { continue };
            let is_same = |other: &usize| {
                let device = &self.children[*other].device;
                device.as_ref().is_some_and(|(other, _)| other == name)
            };
            if (0..at).any(|earlier| is_same(&earlier)) {
                continue; // divided with the first engine of the device
            }
            let same: Vec<usize> = (at..self.children.len()).filter(is_same).collect();
            let budgets: Vec<FrameBudget> = match total.of_device(*is_gpu) {
                None => vec![FrameBudget::Unlimited; same.len()],
                // Unchanged, so that `Auto` stays the choice of the engine.
                Some(_) if same.len() == 1 => vec![total],
                Some(time) => {
                    let of_child = |child: &Child| (child.weight, child.has_work());
                    let uses: Vec<_> =
                        same.iter().map(|at| of_child(&self.children[*at])).collect();
                    divide(time, &uses).into_iter().map(FrameBudget::Time).collect()
                }
            };
            for (at, budget) in same.into_iter().zip(budgets) {
                let child = &mut self.children[at];
                if child.budget.replace(budget) != Some(budget) {
                    child.client.set_budget(budget);
                }
            }
        }
    }
}

/// The budget of each engine on one device: the total, divided among the engines with work in
/// proportion to their weights. An engine without work gets the share that it would have with work,
/// so that its first step does not wait for the next division. `engines`: the weight of each, and
/// whether it has open replies or agents to evaluate in the background.
fn divide(total: Duration, engines: &[(f32, bool)]) -> Vec<Duration> {
    let engines = engines.iter().map(|(weight, has_work)| (f64::from(weight.max(0.0)), *has_work));
    let working: f64 = engines.clone().filter(|(_, works)| *works).map(|(weight, _)| weight).sum();
    let budget = |(weight, has_work): (f64, bool)| {
        let sum = if has_work { working } else { working + weight };
        if sum > 0.0 { total.mul_f64((weight / sum).min(1.0)) } else { Duration::ZERO }
    };
    engines.map(budget).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(engines: &[(f32, bool)]) -> Vec<u128> {
        divide(Duration::from_millis(6), engines).iter().map(Duration::as_micros).collect()
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
