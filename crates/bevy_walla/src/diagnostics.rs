//! Counters of the engine for Bevy's diagnostics, and types of its reports.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bevy_app::prelude::*;
use bevy_diagnostic::{
    Diagnostic, DiagnosticMeasurement, DiagnosticPath, Diagnostics, DiagnosticsStore,
    RegisterDiagnostic,
};
use bevy_ecs::prelude::*;

use walla_router::Health;

use crate::engines::WallaEngines;
use crate::reply::ReplyFinished;
use crate::systems::WallaSystems;
use crate::walla::Walla;

pub use crate::walla::HostTimes;
pub use walla_runtime::{
    BudgetStats, DeviceInfo, EngineStats, ModelCard, TemplateError, TemplateState, TextSettings,
};

/// Adds walla's counters to Bevy's diagnostics: tokens per second, step and frame times, times to
/// the first token, queue, pages, agents.
///
/// A first token is measured when its reply has ended, because the end carries its times. If
/// several replies end in one frame, the one with the latest first token counts, so that short
/// times do not hide a long one. The four parts are parts of the same reply: their sum is
/// [`FIRST_TOKEN_MS`](Self::FIRST_TOKEN_MS). Replies without a token are not measured.
///
/// Add it together with [`WallaPlugin`](crate::WallaPlugin), and Bevy's `LogDiagnosticsPlugin` to
/// print the values to the console.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallaDiagnosticsPlugin;

impl WallaDiagnosticsPlugin {
    /// Tokens decoded for all agents of the engine, per second.
    pub const TOKENS_PER_SECOND: DiagnosticPath =
        DiagnosticPath::const_new("walla/tokens_per_second");

    /// Duration of the latest step on the device, in milliseconds.
    pub const STEP_MS: DiagnosticPath = DiagnosticPath::const_new("walla/step_ms");

    /// Host time of the plugin's systems in the latest frame, in microseconds.
    pub const FRAME_MICROS: DiagnosticPath = DiagnosticPath::const_new("walla/frame_micros");

    /// Asks of this app whose reply has not begun.
    pub const ASKS_WAITING: DiagnosticPath = DiagnosticPath::const_new("walla/asks_waiting");

    /// Agents that speak or wait to speak.
    pub const AGENTS_ACTIVE: DiagnosticPath = DiagnosticPath::const_new("walla/agents_active");

    /// Agents with an open ask that wait for a slot of the engine.
    pub const AGENTS_WAITING: DiagnosticPath = DiagnosticPath::const_new("walla/agents_waiting");

    /// KV pages in use.
    pub const PAGES_USED: DiagnosticPath = DiagnosticPath::const_new("walla/pages_used");

    /// Memory that the device holds for KV pages, in MiB.
    pub const KV_MIB: DiagnosticPath = DiagnosticPath::const_new("walla/kv_mib");

    /// Device time that a frame may use, in milliseconds; not measured without a limit.
    pub const BUDGET_MS: DiagnosticPath = DiagnosticPath::const_new("walla/budget_ms");

    /// Device time of the latest frame whose steps have been measured, in milliseconds.
    pub const USED_MS: DiagnosticPath = DiagnosticPath::const_new("walla/used_ms");

    /// Frames that used more than their budget, since the start.
    pub const FRAMES_OVER: DiagnosticPath = DiagnosticPath::const_new("walla/frames_over_budget");

    /// 99th percentile of the error of predicted step times, in per cent.
    pub const PREDICTION_ERROR: DiagnosticPath =
        DiagnosticPath::const_new("walla/prediction_error_p99");

    /// Prompt tokens granted in the latest frame.
    pub const PREFILL_TOKENS: DiagnosticPath = DiagnosticPath::const_new("walla/prefill_tokens");

    /// Prompt tokens evaluated before an ask
    /// ([`background_prefill`](crate::EngineOptions::background_prefill)), for all agents of the
    /// engine, per second. They are not in [`PREFILL_TOKENS`](Self::PREFILL_TOKENS).
    pub const BACKGROUND_TOKENS_PER_SECOND: DiagnosticPath =
        DiagnosticPath::const_new("walla/background_tokens_per_second");

    /// Time from the arrival of an ask at the engine to its first token, in milliseconds.
    pub const FIRST_TOKEN_MS: DiagnosticPath = DiagnosticPath::const_new("walla/first_token_ms");

    /// Part of it in which the ask waited for earlier replies, a slot or device time, in
    /// milliseconds.
    pub const FIRST_TOKEN_WAITING_MS: DiagnosticPath =
        DiagnosticPath::const_new("walla/first_token_waiting_ms");

    /// Part of it in which the prompt was rendered and tokenised, in milliseconds.
    pub const FIRST_TOKEN_ENCODING_MS: DiagnosticPath =
        DiagnosticPath::const_new("walla/first_token_encoding_ms");

    /// Part of it from the first to the last step with prompt tokens, in milliseconds; 0 for one
    /// step.
    pub const FIRST_TOKEN_PREFILL_MS: DiagnosticPath =
        DiagnosticPath::const_new("walla/first_token_prefill_ms");

    /// Part of it from the step with the last prompt token to the first token, in milliseconds.
    pub const FIRST_TOKEN_DECODE_MS: DiagnosticPath =
        DiagnosticPath::const_new("walla/first_token_decode_ms");

    /// Agents whose request was deferred in the latest frame.
    pub const AGENTS_DEFERRED: DiagnosticPath = DiagnosticPath::const_new("walla/agents_deferred");

    /// Programs of the device that are launched op by op although they could have been graphs.
    pub const GRAPH_FALLBACKS: DiagnosticPath = DiagnosticPath::const_new("walla/graph_fallbacks");

    /// Calls of the device's driver per step, mean since the start.
    pub const DRIVER_CALLS: DiagnosticPath =
        DiagnosticPath::const_new("walla/driver_calls_per_step");

    /// A measurement of one engine of several: `tokens_per_second`, `step_ms`, `agents_active`,
    /// `replies` (of this app), `moved` (asks that a substitute has taken over) and `available` (0
    /// or 1: [`Health`]). They are registered when the engine is first seen.
    #[must_use]
    pub fn of_engine(name: &str, measurement: &str) -> DiagnosticPath {
        DiagnosticPath::from_components(["walla", "engines", name, measurement])
    }

    /// Records the measurements of each engine of several.
    pub fn engines_system(
        mut store: ResMut<DiagnosticsStore>,
        engines: Res<WallaEngines>,
        mut last: Local<HashMap<Arc<str>, (Instant, u64)>>,
    ) {
        let now = Instant::now();
        for status in engines.list() {
            let stats = &status.stats;
            let before = last.insert(Arc::clone(&status.name), (now, stats.tokens));
            let rate = before.map(|(then, tokens)| {
                let seconds = now.duration_since(then).as_secs_f64().max(1e-9);
                stats.tokens.saturating_sub(tokens) as f64 / seconds
            });
            let is_available = status.health == Health::Available && !status.state.is_over();
            for (measurement, value) in [
                ("tokens_per_second", rate),
                ("step_ms", Some(stats.step.as_secs_f64() * 1e3)),
                ("agents_active", Some(f64::from(stats.agents_active))),
                ("replies", Some(f64::from(status.replies))),
                ("moved", Some(status.moved as f64)),
                ("available", Some(f64::from(u8::from(is_available)))),
            ] {
                let path = Self::of_engine(&status.name, measurement);
                if store.get(&path).is_none() {
                    store.add(Diagnostic::new(path.clone()));
                }
                if let (Some(value), Some(diagnostic)) = (value, store.get_mut(&path)) {
                    diagnostic.add_measurement(DiagnosticMeasurement { time: now, value });
                }
            }
        }
    }

    /// Records the measurements of a frame. The plugin runs it in the frames in which the counters
    /// of [`Walla`] were updated: with fixed time steps, an update may have none.
    pub fn diagnostic_system(
        mut diagnostics: Diagnostics,
        walla: Res<Walla>,
        mut ends: MessageReader<ReplyFinished>,
        mut last: Local<Option<(Instant, [u64; 2])>>,
    ) {
        let stats = walla.stats();
        let (now, counts) = (Instant::now(), [stats.tokens, stats.background_tokens]);
        if let Some((then, counts_then)) = last.replace((now, counts)) {
            let seconds = now.duration_since(then).as_secs_f64();
            if seconds > 0.0 {
                let paths = [&Self::TOKENS_PER_SECOND, &Self::BACKGROUND_TOKENS_PER_SECOND];
                for ((path, count), before) in paths.into_iter().zip(counts).zip(counts_then) {
                    let added = count.saturating_sub(before) as f64;
                    diagnostics.add_measurement(path, || added / seconds);
                }
            }
        }
        let latest = ends.read().map(|end| end.usage).max_by_key(|usage| usage.first_token_micros);
        if let Some(usage) = latest.filter(|usage| usage.first_token_micros > 0) {
            let parts = usage.first_token;
            for (path, micros) in [
                (&Self::FIRST_TOKEN_MS, usage.first_token_micros),
                (&Self::FIRST_TOKEN_WAITING_MS, parts.waiting_micros),
                (&Self::FIRST_TOKEN_ENCODING_MS, parts.encoding_micros),
                (&Self::FIRST_TOKEN_PREFILL_MS, parts.prefill_micros),
                (&Self::FIRST_TOKEN_DECODE_MS, parts.decode_micros),
            ] {
                diagnostics.add_measurement(path, || micros as f64 / 1e3);
            }
        }
        diagnostics.add_measurement(&Self::STEP_MS, || stats.step.as_secs_f64() * 1e3);
        diagnostics.add_measurement(&Self::FRAME_MICROS, || {
            walla.host_times().total().as_secs_f64() * 1e6
        });
        diagnostics.add_measurement(&Self::ASKS_WAITING, || walla.asks_waiting() as f64);
        diagnostics.add_measurement(&Self::AGENTS_ACTIVE, || f64::from(stats.agents_active));
        diagnostics.add_measurement(&Self::AGENTS_WAITING, || f64::from(stats.agents_waiting));
        diagnostics.add_measurement(&Self::PAGES_USED, || f64::from(stats.pages_used));
        diagnostics.add_measurement(&Self::KV_MIB, || stats.kv_bytes as f64 / f64::from(1 << 20));
        diagnostics.add_measurement(&Self::GRAPH_FALLBACKS, || stats.graph_fallbacks as f64);
        if stats.steps > 0 {
            let per_step = stats.driver_calls as f64 / stats.steps as f64;
            diagnostics.add_measurement(&Self::DRIVER_CALLS, || per_step);
        }
        let used = &stats.budget;
        if let Some(budget) = used.budget {
            diagnostics.add_measurement(&Self::BUDGET_MS, || budget.as_secs_f64() * 1e3);
        }
        diagnostics.add_measurement(&Self::USED_MS, || used.used.as_secs_f64() * 1e3);
        diagnostics.add_measurement(&Self::FRAMES_OVER, || used.frames_over as f64);
        diagnostics.add_measurement(&Self::PREDICTION_ERROR, || f64::from(used.error_p99) * 100.0);
        diagnostics.add_measurement(&Self::PREFILL_TOKENS, || f64::from(used.prefill_tokens));
        diagnostics.add_measurement(&Self::AGENTS_DEFERRED, || f64::from(used.agents_deferred));
    }
}

impl Plugin for WallaDiagnosticsPlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Walla>()
            .add_message::<ReplyFinished>()
            .register_diagnostic(Diagnostic::new(Self::TOKENS_PER_SECOND))
            .register_diagnostic(Diagnostic::new(Self::STEP_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::FRAME_MICROS).with_suffix("µs"))
            .register_diagnostic(Diagnostic::new(Self::ASKS_WAITING))
            .register_diagnostic(Diagnostic::new(Self::AGENTS_ACTIVE))
            .register_diagnostic(Diagnostic::new(Self::AGENTS_WAITING))
            .register_diagnostic(Diagnostic::new(Self::PAGES_USED))
            .register_diagnostic(Diagnostic::new(Self::KV_MIB).with_suffix("MiB"))
            .register_diagnostic(Diagnostic::new(Self::GRAPH_FALLBACKS))
            .register_diagnostic(Diagnostic::new(Self::DRIVER_CALLS))
            .register_diagnostic(Diagnostic::new(Self::BUDGET_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::USED_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::FRAMES_OVER))
            .register_diagnostic(Diagnostic::new(Self::PREDICTION_ERROR).with_suffix("%"))
            .register_diagnostic(Diagnostic::new(Self::PREFILL_TOKENS))
            .register_diagnostic(Diagnostic::new(Self::BACKGROUND_TOKENS_PER_SECOND))
            .register_diagnostic(Diagnostic::new(Self::FIRST_TOKEN_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::FIRST_TOKEN_WAITING_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::FIRST_TOKEN_ENCODING_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::FIRST_TOKEN_PREFILL_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::FIRST_TOKEN_DECODE_MS).with_suffix("ms"))
            .register_diagnostic(Diagnostic::new(Self::AGENTS_DEFERRED))
            .add_systems(
                PreUpdate,
                (
                    Self::diagnostic_system,
                    Self::engines_system.run_if(resource_exists::<WallaEngines>),
                )
                    .chain()
                    .after(WallaSystems::Publish)
                    .run_if(resource_changed::<Walla>),
            );
    }
}
