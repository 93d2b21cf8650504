//! Requests of all agents: scheduling, output processing and events.
//!
//! The core is a state machine. The shell calls [`Core::advance`], which receives the time; tests
//! do the same with a virtual clock. One call collects completed steps, starts all work that can
//! start, and submits steps while the device has capacity. The core's threads encode prompts,
//! compute masks, and read and write saved caches; loading uses a clock.

mod actions;
mod agents;
mod asks;
mod background;
mod budget;
mod calibrate;
mod clients;
mod collect;
mod constraints;
mod cost_file;
mod deadline;
mod encode;
mod fallback;
mod fork;
mod in_flight;
mod kv_cache;
mod load;
mod output;
mod pages;
mod reasoning;
mod schedule;
mod scoring;
mod snapshots;
mod source;
mod stalls;
#[cfg(test)]
mod tests;
mod transfers;

use std::collections::VecDeque;
use std::sync::Arc;

use walla_device::DeviceError;
use walla_exec::{ExecError, StepError};
use walla_model::tokenizer::Tokenizer;
use walla_plan::BUCKETS;
use walla_plan::governor::BucketError;

use self::agents::Agents;
use self::budget::Budget;
use self::clients::Clients;
use self::constraints::Constraints;
use self::encode::PromptEncoder;
use self::in_flight::InFlight;
use self::kv_cache::KvCache;
use self::schedule::Scheduler;
pub(crate) use self::source::Source;
use self::transfers::Transfers;
use crate::api::{Command, EngineStats, Event, Logged, Pacing, ReplyId};
use crate::ask_queue::Ask;
use crate::engine_core::{Advance, ClientKey, Control, Emit, EngineCore};
use crate::model_text::ModelText;
use crate::options::{Deadlines, EngineError};
use crate::status::ModelCard;

/// Maximum steps in flight: one runs while the next is queued behind it.
const MAX_STEPS_AHEAD: u32 = 2;

/// Maximum recomputations of a reply after failed steps. Then the reply fails.
const MAX_RETRIES: u32 = 3;

/// See the [module](self).
///
/// # Parts
/// Decisions that concern several parts are methods of this struct, in the file that is named after
/// the decision.
///
/// | part | module | contents | access |
/// |---|---|---|---|
/// | `clients` | [`clients`] | grants, pauses, stalls, undelivered events | methods only |
/// | `agents` | [`agents`] | slots, parked agents | methods only |
/// | one agent, its reply | [`agents`] | specification, conversation, asks, reply | fields |
/// | sequence of an agent | [`agents`] | tokens that the host knows | methods only |
/// | `prompts` | [`encode`] | prompts in the text thread | methods only |
/// | `constraints` | [`constraints`] | worker threads of masks | methods only |
/// | `kv` | [`kv_cache`] | executor, KV ledger, page limit, page claim | methods; the ledger is read |
/// | `scheduler` | [`schedule`] | plan and batch of a step | methods only |
/// | `budget` | [`budget`] | governor, frames | methods only |
/// | `in_flight` | [`in_flight`] | submitted steps, their results, failed polls | methods only |
/// | `transfers` | [`transfers`] | saves and loads of caches, thread for files | methods only |
///
/// # State of a request
/// | state | place |
/// |---|---|
/// | waiting asks | `AgentState::asks` |
/// | phase, counts, speech so far | [`Reply`](agents::Reply) in `AgentState::reply` |
/// | held text, stop strings, open block | `AgentState::output` |
/// | known tokens, unread draws, epoch | `AgentState::sequence` |
/// | submitted positions | `kv.len(slot)` |
/// | grammar, mask of the next draw | [`ReplyConstraint`](constraints::ReplyConstraint) in `Reply::constraint` |
/// | outputs that are not read | pending outputs in `in_flight` |
/// | prompt that is being encoded | job in `prompts` |
/// | tokens that are evaluated before an ask | `AgentState::background`, `AgentState::sequence` |
/// | undelivered events | outbox of the client, in `clients` |
/// | delivered events | client slots of the shell |
#[derive(Debug)]
pub(crate) struct Core {
    card: ModelCard,
    model_text: Arc<ModelText>,
    // Requests.
    clients: Clients,
    agents: Agents,
    prompts: PromptEncoder,
    constraints: Constraints,
    // Scheduling.
    kv: KvCache,
    scheduler: Scheduler,
    budget: Budget,
    in_flight: InFlight,
    transfers: Transfers,
    // Settings.
    deadlines: Deadlines,
    context_tokens: u32,
    max_prefill_tokens: u32,
    background_prefill: bool,
    context_shift: bool,
    driver_calls_of_load: u64,
    /// Reason why this core cannot continue the replies of its predecessor. The next call of
    /// `advance` returns it.
    refused: Option<EngineError>,
    stats: EngineStats,
}

/// Result of [`Core::submit_steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Submission {
    /// Steps were submitted, or planning freed pages: more work may be possible.
    Progress,
    /// The block of a partly failed step is still being copied. No completion reports the end of
    /// the copy, because no step may be in flight.
    Blocked,
    /// A step failed. Its agents are evaluated again.
    Failed,
    /// No agent has work that can run now.
    Nothing,
}

impl Core {
    /// Submits steps while the device has capacity.
    fn submit_steps(&mut self, now_micros: u64) -> Result<Submission, EngineError> {
        // Pages move only while nothing is in flight, so no step is submitted until then.
        if self.kv.resize()? {
            return Ok(Submission::Nothing);
        }
        let mut submission = Submission::Nothing;
        while self.kv.accepts_step() {
            // Reset before the plan: only pages that the plan itself frees are a reason to plan
            // again.
            self.kv.take_freed();
            let stopped_by = match self.submit_step(now_micros) {
                Ok(true) => {
                    submission = Submission::Progress;
                    continue;
                }
                // Nothing to run. If planning ended a reply or freed pages, another agent may
                // continue. Only existing replies and pages can be freed, so this repeats a bounded
                // number of times.
                Ok(false) if self.kv.take_freed() => Submission::Progress,
                Ok(false) => Submission::Nothing,
                // Copies of a step that failed half-way still run: no step is accepted before they
                // end.
                Err(StepError::Exec(ExecError::Device(DeviceError::HostInFlight { .. }))) => {
                    Submission::Blocked
                }
                Err(StepError::Exec(ExecError::Device(error))) if !error.is_lost() => {
                    self.retry_scheduled(&error.to_string());
                    Submission::Failed
                }
                Err(error) => return Err(error.into()),
            };
            return Ok(if submission == Submission::Nothing { stopped_by } else { submission });
        }
        Ok(submission)
    }

    /// Time of the next call of `advance`, if no step was collected in this one.
    fn next_wakeup(&self, submission: Submission, now_micros: u64) -> Advance {
        // A reply that ended during this call frees its agent for the next ask, or its slot for the
        // next agent.
        let can_start = (!self.prompts.is_full()
            && (0..self.agents.slots()).any(|slot| self.is_free(slot)))
            || self.next_placement(now_micros).is_some();
        let in_flight = self.kv.executor().in_flight() > 0;
        let background = self.micros_to_background(now_micros);
        match submission {
            Submission::Progress => Advance::Again,
            _ if can_start || background == Some(0) => Advance::Again,
            Submission::Blocked => Advance::Poll,
            // Results before a new attempt: they may free pages or slots that a failed submission
            // lacked.
            _ if in_flight => Advance::Poll,
            Submission::Failed => Advance::Again,
            Submission::Nothing if self.budget.waits_for_window => {
                Advance::Pause(self.budget.micros_to_window(now_micros).max(1))
            }
            // A reply with a deadline may get no other wake-up.
            Submission::Nothing => {
                let deadline = self.micros_to_reply_deadline(now_micros);
                let others = self.micros_to_stall(now_micros).into_iter().chain(background);
                let next = deadline.into_iter().chain(others).min();
                next.map_or(Advance::Idle, Advance::Pause)
            }
        }
    }

    fn update_stats(&mut self) {
        self.agents.update_stats(&mut self.stats);
        self.stats.queue_full = self.clients.refused();
        self.kv.update_stats(&mut self.stats);
        self.stats.background_agents = self.background_agents();
        let device = self.kv.executor().device();
        self.stats.driver_calls = device.counters().total() - self.driver_calls_of_load;
        self.stats.graph_fallbacks = device.graph_fallbacks().total();
        if let Some(compiler) = self.model_text.compiler.prepared() {
            self.stats.grammars = compiler.compilations();
            self.stats.grammar_bytes = compiler.bytes() as u64;
        }
        self.stats.budget = self.budget.stats();
    }
}

impl EngineCore for Core {
    fn add_client(&mut self, key: ClientKey, pacing: Pacing) {
        self.clients.add(key, pacing);
    }

    fn remove_client(&mut self, key: ClientKey) {
        // The client is gone, so asks of its parked agents end without events.
        self.agents.remove_parked(key);
        for id in self.agents.ids_in_slots(key) {
            self.remove_agent(key, id, 0);
        }
        self.remove_transfers(key);
        self.clients.remove(key);
    }

    fn command(&mut self, client: ClientKey, command: Command, now_micros: u64) {
        // The clock of a paused client stops, so an ask does not age in a pause.
        let now_micros = self.clients.now_micros(client, now_micros);
        let agent = command.agent();
        let max_turns = self.context_tokens as usize;
        // Copies of caches are not recorded.
        let is_logged = !matches!(command, Command::CopyCache { .. });
        match command {
            Command::AddAgent { agent, spec } => {
                self.agents.add(client, agent, *spec);
            }
            Command::ChangeAgent { agent, spec } => self.agents.change(client, agent, spec),
            Command::SetDetail { agent, detail } => {
                if let Some(state) = self.agents.of_client(client, agent) {
                    state.set_detail(detail);
                }
            }
            Command::SetConversation { agent, turns } => {
                self.cancel(client, agent, None, now_micros);
                if let Some(state) = self.agents.of_client(client, agent) {
                    state.replace_turns(turns, max_turns);
                }
            }
            Command::AppendTurns { agent, turns } => {
                if let Some(state) = self.agents.of_client(client, agent) {
                    state.append_turns(turns, max_turns);
                }
            }
            Command::EditConversation { agent, edit } => {
                self.edit(client, agent, edit, now_micros);
            }
            Command::ForkAgent { agent, source, spec } => self.fork(client, agent, source, spec),
            Command::CopyCache { agent, ticket } => {
                self.copy_cache(client, agent, ticket, now_micros);
            }
            Command::RemoveAgent { agent } => self.remove_agent(client, agent, now_micros),
            Command::Ask { agent, reply_id, prompt, options } => {
                self.ask(client, agent, Ask::new(reply_id, prompt, options, now_micros));
            }
            Command::Cancel { agent, reply_id } => {
                self.cancel(client, agent, Some(reply_id), now_micros);
            }
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                self.interrupt(client, agent, (reply_id, heard_bytes), now_micros);
            }
        }
        if is_logged {
            self.clients.log(client, agent, ReplyId::NONE, Logged::Applied);
        }
    }

    fn set_logged(&mut self, client: ClientKey, is_logged: bool) {
        self.clients.set_logged(client, is_logged);
    }

    fn set_paused(&mut self, client: ClientKey, is_paused: bool) {
        self.clients.request_pause(client, is_paused);
    }

    fn is_paused(&self) -> bool {
        self.clients.is_all_paused()
    }

    fn frame(&mut self, key: ClientKey, now_micros: u64) {
        if self.clients.grant_frame(key, now_micros) == Some(true) {
            self.budget.begin_frame(now_micros);
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Budget(budget) => self.budget.set(budget),
            Control::Reserved(time) => self.budget.set_reserved(time),
            Control::KvTokens(tokens) => self.limit_kv(tokens),
        }
    }

    fn advance(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> Result<Advance, EngineError> {
        let (is_zero, ticks) = (self.budget.is_zero(), self.budget.ticks);
        self.clients.update_pauses(is_zero, now_micros, |client, micros| {
            self.agents.postpone(client, micros, ticks);
        });
        // Events that a full queue refused come before new ones.
        self.clients.deliver(emit);
        // Behind the failures of all replies, which were queued when the engine was refused.
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        // Before anything is planned: results end replies, and free slots, pages and ring slots.
        let collected = match self.collect_steps(now_micros, emit) {
            Ok(collected) => {
                self.in_flight.polled();
                collected
            }
            // The step remains in flight: the next call polls again.
            Err(ExecError::Device(error))
                // The step still runs: only the question failed. It is asked again, a bounded
                // number of times.
                if !error.is_lost() && self.in_flight.may_poll_again() =>
            {
                false
            }
            Err(error) => return Err(error.into()),
        };
        self.check_step_deadline(now_micros)?;
        self.clients.update_stalls(now_micros);
        self.end_overdue_replies(now_micros);
        self.end_stalled_reply(now_micros);
        let has_copied = self.run_transfers(now_micros)?;
        self.start_asks(now_micros);
        // If a prompt fails, its agent's next ask can start.
        // Each of these may end a reply or a wait, so that the next ask of an agent can start.
        while self.collect_prompts(now_micros)
            || self.collect_masks(now_micros, emit)
            || self.encode_in_background(now_micros)
        {
            self.start_asks(now_micros);
        }
        // Events that are still undelivered afterwards wait for a slow host, whose agents pause.
        self.clients.deliver(emit);
        // Again: a queue that was emptied ends a stall, before the plan looks at it.
        self.clients.update_stalls(now_micros);
        self.budget.begin_window(now_micros, self.clients.has_free_running());
        let submission = self.submit_steps(now_micros)?;
        self.clients.deliver(emit);
        self.update_stats();
        let next = self.next_wakeup(submission, now_micros);
        // The prefill of an agent may have ended after its save was looked at. A result or a copy
        // may let another step start, so the next round follows at once.
        let is_again =
            collected || has_copied || self.transfers.take_stopped() || self.can_export();
        Ok(if is_again { Advance::Again } else { self.transfers.earlier(next) })
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }

    fn changed_errors(&mut self) -> Option<[BucketError; BUCKETS.len()]> {
        self.budget.changed_errors()
    }

    fn card(&self) -> ModelCard {
        self.card.clone()
    }

    fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        Some(Arc::clone(&self.model_text.tokenizer))
    }

    fn take_over(&mut self, lost: Self) {
        self.continue_from(lost);
    }

    fn drain_events(&mut self, reason: &str) -> Vec<(ClientKey, VecDeque<Event>)> {
        self.fail_all(reason);
        self.clients.drain()
    }
}
