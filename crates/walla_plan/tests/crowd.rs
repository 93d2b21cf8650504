//! Agents on devices whose steps take long: a crowd is as fast after any history as on a new
//! engine, and no prediction keeps a step from running for ever.

#[path = "common/village.rs"]
mod village;

use proptest::prelude::*;
use village::{Device, Outcome, Village};
use walla_plan::governor::{MAX_DEBT_FRAMES, TRIAL_STEPS};
use walla_plan::{BUCKETS, Governor, GovernorOptions, Limits, StepWork};

/// Devices with the costs that were measured for them.
fn devices() -> [Device; 3] {
    [Device::half_b_on_cpu(), Device::one_b_on_gpu(), Device::four_b_on_cpu()]
}

/// Work before a crowd is asked.
type History<'a> = &'a dyn Fn(&mut Village<'_>);

/// Seconds of the first crowd after a history, for an engine that measured all steps at load or
/// only the smallest one.
fn crowd_after(
    device: &Device,
    is_calibrated: bool,
    history: impl Fn(&mut Village<'_>),
) -> Outcome {
    let mut village = Village::new(device, is_calibrated);
    history(&mut village);
    village.crowd(40, 8)
}

#[test]
fn a_crowd_is_as_fast_after_any_history() {
    for device in devices() {
        // A GPU measures all steps at load, a slow processor perhaps the smallest one only.
        for is_calibrated in [true, device.options.pads_rows] {
            let cold = crowd_after(&device, is_calibrated, |_| {});
            let singles = |village: &mut Village<'_>| {
                (0..12).for_each(|_| _ = village.one_reply(20, 24));
            };
            // A constrained reply evaluates its forced tokens as prompt rows.
            let constrained = |village: &mut Village<'_>| {
                (0..20).for_each(|n| _ = village.one_reply(1 + n % 9, 1));
            };
            let loaded = |village: &mut Village<'_>| {
                village.load = 2.0;
                (0..12).for_each(|_| _ = village.one_reply(20, 24));
                village.load = 1.0;
            };
            let all = |village: &mut Village<'_>| {
                loaded(village);
                constrained(village);
                village.crowd(40, 8);
                singles(village);
            };
            let histories: [(&str, History<'_>); 4] = [
                ("single replies", &singles),
                ("constrained", &constrained),
                ("loaded", &loaded),
                ("all", &all),
            ];
            for (name, history) in histories {
                let after = crowd_after(&device, is_calibrated, history);
                assert!(
                    // The first steps after a change of load correct the predictions.
                    after.seconds < 1.15 * cold.seconds + 0.1,
                    "{}, {name}, calibrated: {is_calibrated}: {after:?}, cold: {cold:?}",
                    device.name
                );
            }
        }
    }
}

/// The costs of the model with which the engine collapsed: a row takes 18 ms, eight take 21 ms.
#[test]
fn a_step_that_exceeds_the_budget_takes_the_rows_that_cost_little_more() {
    let device = Device::half_b_on_cpu();
    for is_calibrated in [true, false] {
        let mut village = Village::new(&device, is_calibrated);
        village.crowd(8, 24);
        let speech = village.crowd(8, 200);
        // The prompts take some steps.
        assert!(speech.steps < 230, "8 rows a step: {speech:?}");
        let stats = village.governor.stats();
        assert_eq!(stats.frames_over, stats.frames_overdrawn, "{stats:?}");
        assert!(stats.smallest_step.as_micros() > 8_333, "{stats:?}");
    }
}

#[test]
fn use_stays_within_the_budget_on_average() {
    let device = Device::half_b_on_cpu();
    let mut village = Village::new(&device, true);
    for _ in 0..3 {
        let crowd = village.crowd(40, 8);
        // The time that was left before the crowd: three budgets. The last step is paid later.
        let granted = crowd.seconds * 1e6 / 2.0 + 4.0 * 8_333.0 + 3.0 * 18_000.0;
        assert!(crowd.device_micros < granted, "{crowd:?}");
        assert!(crowd.longest_step_micros < 3.0 * 18_000.0 * 1.25 * 1.25, "{crowd:?}");
    }
}

#[test]
fn predictions_follow_a_change_of_load_within_100_frames() {
    for device in devices() {
        let mut village = Village::new(&device, true);
        village.crowd(40, 8);
        village.crowd(20, 8);
        for load in [1.0, 2.0, 1.0, 3.0, 1.0] {
            village.load = load;
            // Only single rows are measured; predictions of crowds follow.
            village.speak_for(100);
            for rows in [1, 8, 16, 40] {
                let work = StepWork::decode(rows, u64::from(rows) * 200);
                let (expected, truth) =
                    (village.governor.expect_micros(work), load * device.micros(work));
                let error = expected / truth - 1.0;
                assert!(error.abs() < 0.2, "{} {rows} rows, {load}: {error}", device.name);
            }
        }
    }
}

/// Other programs make all steps up to four times as slow, from moment to moment or for seconds.
#[test]
fn a_crowd_takes_as_many_times_longer_as_its_steps() {
    const MAX_LOAD: f32 = 4.0;
    for device in [Device::half_b_on_cpu(), Device::four_b_on_cpu()] {
        let cold = crowd_after(&device, true, |_| {});
        for (seed, load_frames) in (0..60).zip([3.0, 30.0, 300.0].into_iter().cycle()) {
            let mut village = Village::with_seed(&device, seed % 2 == 0, seed);
            village.stolen = 0.1;
            (village.load_frames, village.max_load) = (load_frames, MAX_LOAD);
            for nth in 0..4 {
                let crowd = village.crowd(40, 8);
                assert!(
                    crowd.seconds < 1.15 * f64::from(MAX_LOAD) * cold.seconds,
                    "{}, seed {seed}, crowd {nth}: {crowd:?}, cold: {cold:?}",
                    device.name
                );
                (0..4).for_each(|_| _ = village.one_reply(20, 24));
            }
        }
    }
}

/// Seventeen rows take three times as long as sixteen.
#[test]
fn a_jump_in_the_costs_starves_no_crowd() {
    let device = Device {
        name: "a jump in the costs",
        rows: &[(1, 18_400.0), (16, 24_400.0), (17, 84_800.0), (64, 103_600.0)],
        prompt_micros: 0.0,
        context_token_micros: 0.0,
        ..Device::half_b_on_cpu()
    };
    for is_calibrated in [true, false] {
        let mut village = Village::new(&device, is_calibrated);
        for _ in 0..3 {
            let crowd = village.crowd(40, 300);
            let rows = crowd.tokens / crowd.steps;
            assert!(rows >= 12, "{rows} rows a step, calibrated: {is_calibrated}: {crowd:?}");
        }
    }
}

/// A limit of launches holds although budgets are exceeded in any case.
#[test]
fn a_limit_of_launches_keeps_its_margin() {
    let device = Device {
        name: "a shared GPU",
        rows: &[(1, 800.0), (512, 11_020.0)],
        prompt_micros: 0.0,
        context_token_micros: 0.0,
        options: GovernorOptions {
            budget_micros: Some(500),
            max_launch_micros: Some(1_800),
            pads_rows: false,
            ..GovernorOptions::default()
        },
        ..Device::one_b_on_gpu()
    };
    let mut village = Village::new(&device, true);
    village.stolen = 0.03;
    let (mut steps, mut over) = (0, 0);
    for _ in 0..40 {
        let crowd = village.crowd(60, 8);
        (steps, over) = (steps + crowd.steps, over + crowd.steps_over);
    }
    assert!(50 * over < steps, "{over} of {steps} steps");
}

/// A history of measurements, from a fiftieth to fifty times the true time: decode rows, prompt
/// tokens and factor.
fn history() -> impl Strategy<Value = Vec<(u32, u32, f32)>> {
    let factor = (-100_i32..=100).prop_map(|log| 50_f32.powf(log as f32 / 100.0));
    prop::collection::vec((0_u32..64, 0_u32..64, factor), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    /// After any measurements, a step of each size that the budget allows runs again.
    #[test]
    fn every_step_is_tried_again_after_any_history(
        history in history(),
        is_calibrated in any::<bool>(),
        which in 0_usize..3,
        rows in 2_u32..64,
        prompt in 0_u32..40,
    ) {
        let mut device = devices()[which].clone();
        // Trials are more frequent, which makes the test faster.
        device.options.frames_over_per_1000 = 100;
        let mut governor = Governor::new(device.options, device.fitted(is_calibrated));
        for (decode_rows, prefill_tokens, factor) in history {
            let context_tokens = u64::from(decode_rows + prefill_tokens) * 100;
            let work = StepWork { decode_rows, prefill_tokens, context_tokens, prefill_pairs: 0 };
            if !work.is_empty() {
                governor.begin_frame();
                let step = governor.submit(work);
                governor.observe(step, (device.micros(work) * factor * 1e3) as u64);
            }
        }
        let wanted =
            StepWork { decode_rows: rows, prefill_tokens: prompt, ..StepWork::default() };
        // The largest step that fits if it is predicted correctly, with a margin of a half.
        let budget = device.options.budget_micros.unwrap_or(u32::MAX) as f32;
        let smallest = device.micros(StepWork::decode(1, 200));
        let possible = if smallest > budget { 2.0 * smallest } else { budget.max(smallest) } / 1.5;
        let fits = |rows: u32| {
            let of = |rows: u32| part(wanted, rows);
            device.micros(of(rows)) <= possible
        };
        let most = (1..=wanted.rows()).rev().find(|&rows| fits(rows)).unwrap_or(1);
        // The bucket below, because rows are counted by buckets.
        let bucket = BUCKETS.into_iter().rev().find(|&bucket| bucket <= most).unwrap_or(1);
        let votes = (2_000 / device.options.frames_over_per_1000).max(TRIAL_STEPS);
        let (mut largest, mut steps) = (0, 0);
        // Frames without a step pay for the one before.
        for _ in 0..80 * votes * MAX_DEBT_FRAMES {
            governor.begin_frame();
            let limits = governor.limits(Limits::default(), StepWork::decode(1, 200), wanted);
            let allows = |rows: u32| {
                if rows > limits.max_rows {
                    return false;
                }
                let cost = limits.cost.map_or(0.0, |cost| cost.predict_micros(part(wanted, rows)));
                cost <= limits.max_device_micros.min(limits.max_step_micros) as f32
            };
            let Some(rows) = (1..=wanted.rows()).rev().find(|&rows| allows(rows)) else {
                continue;
            };
            (largest, steps) = (largest.max(rows), steps + 1);
            if largest >= bucket || steps > 80 * votes {
                break;
            }
            let work = part(wanted, rows);
            let step = governor.submit(work);
            governor.observe(step, (device.micros(work) * 1e3) as u64);
        }
        prop_assert!(largest >= bucket, "{largest} of {bucket} rows: {:?}", governor.stats());
    }
}

/// The first rows of a step: decode rows, then prompt tokens.
fn part(wanted: StepWork, rows: u32) -> StepWork {
    let decode_rows = wanted.decode_rows.min(rows);
    let prefill_tokens = rows - decode_rows;
    let context_tokens = u64::from(rows) * 200;
    StepWork { decode_rows, prefill_tokens, context_tokens, prefill_pairs: 0 }
}
