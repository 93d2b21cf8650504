//! Prompts use the budget: throughput and use of device time, with step costs measured on a CPU and
//! on a GPU, and with noise.

mod throughput;

use proptest::prelude::*;
use throughput::{Device, Noise, Report, Run, run};

fn report(device: Device, noise: Noise, budget_micros: u32, speakers: u32) -> Report {
    run(&Run { device, noise, budget_micros, speakers, frames: 4_000, seed: 1 })
}

/// A CPU leaves unused time to later frames, so budgets that hold only a few rows suffice for
/// chunks that cost little per token.
#[test]
fn a_cpu_uses_its_budget_and_keeps_it() {
    for noise in [Noise::NONE, Noise::EVEN, Noise::OUTLIERS, Noise::TAIL] {
        for budget_micros in [2_000, 4_167, 8_000, 16_000] {
            let prompts = report(Device::CPU, noise, budget_micros, 0);
            assert!(prompts.used >= 0.9, "{} {budget_micros}: {prompts:?}", noise.name);
            assert!(prompts.throughput >= 0.85, "{} {budget_micros}: {prompts:?}", noise.name);
            let mixed = report(Device::CPU, noise, budget_micros, 4);
            assert!(mixed.used >= 0.9, "{} {budget_micros}: {mixed:?}", noise.name);
            for report in [prompts, mixed] {
                assert!(report.used <= 1.02, "{} {budget_micros}: {report:?}", noise.name);
                assert!(report.over <= 0.012, "{} {budget_micros}: {report:?}", noise.name);
            }
        }
    }
}

#[test]
fn a_gpu_uses_its_budget_and_keeps_it() {
    for noise in [Noise::NONE, Noise::EVEN] {
        for budget_micros in [4_167, 8_000, 16_000] {
            for speakers in [0, 4] {
                let report = report(Device::GPU, noise, budget_micros, speakers);
                let what = format!("{} {budget_micros} {speakers}: {report:?}", noise.name);
                assert!(report.used >= 0.9 && report.over <= 0.001, "{what}");
                assert!(report.throughput >= if speakers == 0 { 0.85 } else { 0.8 }, "{what}");
            }
        }
    }
}

/// A step of ten times its usual time is no reason for a margin: no margin would contain it.
#[test]
fn outliers_leave_no_margin() {
    for device in [Device::CPU, Device::GPU] {
        for budget_micros in [4_167, 16_000] {
            let noisy = report(device, Noise::OUTLIERS, budget_micros, 0);
            let quiet = Noise { quiet_after: Some(3_900), ..Noise::OUTLIERS };
            let recovered = report(device, quiet, budget_micros, 0);
            assert!(noisy.used >= 0.85, "{} {budget_micros}: {noisy:?}", device.name);
            assert!(recovered.margin <= 0.12, "{} {budget_micros}: {recovered:?}", device.name);
        }
    }
}

/// With a budget of one row, a step that takes ten times its usual time is more than 15 budgets.
#[test]
fn forgiven_debt_is_all_that_exceeds_the_budget() {
    let seed = 3_690_064_002_295_918_629;
    let (device, noise, budget_micros) = (Device::CPU, Noise::OUTLIERS, 601);
    let report = run(&Run { device, noise, budget_micros, speakers: 0, frames: 1_000, seed });
    assert!(report.used > 1.03 && report.used <= 1.03 + report.forgiven, "{report:?}");
    let even = Run { device, noise: Noise::EVEN, budget_micros, speakers: 0, frames: 1_000, seed };
    assert!(run(&even).forgiven < 1e-9, "{:?}", run(&even));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Over time no device uses more than its budget, apart from the debt of the last frames and
    /// from debt that is forgiven, because no step may exclude all others for long.
    #[test]
    fn the_mean_stays_within_the_budget(
        is_gpu in any::<bool>(),
        noise in prop::sample::select(vec![Noise::EVEN, Noise::OUTLIERS, Noise::TAIL]),
        budget_micros in 500u32..20_000,
        speakers in 0u32..8,
        seed in any::<u64>(),
    ) {
        let device = if is_gpu { Device::GPU } else { Device::CPU };
        let frames = 1_000;
        let report = run(&Run { device, noise, budget_micros, speakers, frames, seed });
        prop_assert!(report.used <= 1.03 + report.forgiven, "{report:?}");
    }
}
