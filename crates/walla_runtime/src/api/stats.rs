//! Counters of an engine.

use std::time::Duration;

use walla_plan::governor::BudgetStats;

/// Counters of an engine, for diagnostics. They count from the engine's start unless documented
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Tokens sampled.
    pub tokens: u64,
    /// Rows of submitted chunks of at least two rows, recomputed tokens included.
    pub prefill_tokens: u64,
    /// Rows evaluated [in the background](crate::EngineOptions::background_prefill). They are not
    /// in `prefill_tokens`.
    pub background_tokens: u64,
    /// Agents that the device evaluates in the background and that have enough pages. Under
    /// [`Pacing::PerFrame`](crate::Pacing::PerFrame) this needs [frames](crate::Client::frame): a
    /// host that grants none while it has no open ask grants them while this is above 0.
    pub background_agents: u32,
    /// Steps submitted.
    pub steps: u64,
    /// Steps whose results have been read.
    pub steps_done: u64,
    /// Duration of these steps, by the device's clock.
    pub device_time: Duration,
    /// Duration of the latest step, from launch to completion as seen by the device thread.
    pub step: Duration,
    /// Rows of the latest step.
    pub step_rows: u32,
    /// Agents that speak or wait to speak now.
    pub agents_active: u32,
    /// Agents that exist now, including parked ones.
    pub agents: u32,
    /// Agents without a slot now: see [`Command::AddAgent`](crate::Command::AddAgent).
    pub agents_parked: u32,
    /// Parked agents that were asked and wait for a slot.
    pub agents_waiting: u32,
    /// Asks waiting now.
    pub asks_waiting: u32,
    /// KV pages in use now.
    pub pages_used: u32,
    /// Total KV pages.
    pub pages: u32,
    /// Device memory of the KV pages now, in bytes.
    pub kv_bytes: u64,
    /// Pages of the last [`set_kv_tokens`](crate::Engine::set_kv_tokens) that could not be
    /// allocated for lack of memory: call it again later.
    pub pages_refused: u32,
    /// Snapshots of recurrent states in use now.
    pub snapshots_used: u32,
    /// Places for snapshots of recurrent states: see
    /// [`EngineOptions::state_snapshots`](crate::EngineOptions::state_snapshots).
    pub snapshots: u32,
    /// Events that were delayed because a client's queue was full.
    pub queue_full: u64,
    /// Driver calls of all kinds since the driver was loaded. If programs write results to host
    /// memory: two per step, and one per about thirty completion checks. Otherwise: six per step,
    /// and one per completion check. Zero on devices without a driver.
    pub driver_calls: u64,
    /// Programs that the device launches op by op although graphs are supported: slower, with the
    /// same tokens. The device's log and `walla devices` report the reasons.
    pub graph_fallbacks: u64,
    /// Masks that constrained replies have received.
    pub masks: u64,
    /// Masks that were late: more than one step was submitted while the reply had no row because
    /// it waited for its mask. The first mask of a model waits for the tables of its vocabulary, if
    /// they are [not prepared](crate::EngineOptions::prepare_constraints).
    pub masks_late: u64,
    /// Time that masks have taken on their threads, compilation of grammars included.
    pub mask_time: Duration,
    /// Grammars that were compiled. Replies with equal constraints or actions share one while it is
    /// among the 256 that were used last.
    pub grammars: u64,
    /// Host memory of the vocabulary's tables for constraints and of the kept grammars, in bytes,
    /// estimated. 0: there are no tables.
    pub grammar_bytes: u64,
    /// Use of the frame budget.
    pub budget: BudgetStats,
}
