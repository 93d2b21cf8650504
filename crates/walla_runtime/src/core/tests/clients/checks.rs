//! Frames of the hosts, and the checks after each of them.

use std::fmt::Write as _;

use super::*;

impl Simulation {
    /// One frame of the hosts, during which the device works.
    pub(super) fn frame(&mut self) {
        let begin_micros = self.now_micros();
        let end_micros = begin_micros + FRAME_MICROS;
        self.frames += 1;
        for client in &mut self.clients {
            client.count_stall(begin_micros);
            if client.grants_in(self.frames) {
                self.core.frame(client.key, begin_micros);
                self.sleeps_until_micros = 0;
            }
        }
        self.work_until(end_micros);
        self.clients.iter_mut().for_each(|client| client.end_stall(self.frames, begin_micros));
        self.setting.clock.advance_to(end_micros);
        check_tokens(&self.core);
        self.check_ended_texts();
        self.check_progress();
        self.check_liveness();
    }

    /// The device thread works, and sleeps while the core needs nothing.
    fn work_until(&mut self, end_micros: u64) {
        for advances in 0.. {
            assert!(advances < MAX_ADVANCES, "the core spins");
            if self.sleeps_until_micros >= end_micros {
                return;
            }
            self.setting.clock.advance_to(self.sleeps_until_micros.max(self.now_micros()));
            let wait_micros = match self.advance() {
                Advance::Again => 0,
                Advance::Poll => 200,
                Advance::Pause(micros) => micros,
                Advance::Idle => {
                    self.check_idle();
                    u64::MAX
                }
            };
            self.sleeps_until_micros = self.now_micros().saturating_add(wait_micros);
        }
    }

    /// Advances as the device thread does. Checks the address of every event.
    pub(super) fn advance(&mut self) -> Advance {
        let now_micros = self.now_micros();
        self.left.clear();
        let has_deadline = self.setting.options.deadlines.reply.is_some();
        let Self { core, heard, clients, started, ended, log, .. } = self;
        let mut emit = |key: ClientKey, event: Event| {
            let client = clients.iter_mut().find(|client| client.key == key);
            let client = client.unwrap_or_else(|| panic!("{key:?} has left: {event:?}"));
            let asked_by = heard.get(&event.reply_id).and_then(|reply| reply.client);
            assert_eq!(asked_by, Some(key), "whoever asked hears it: {event:?}");
            if client.room == 0 {
                return Err(event);
            }
            client.room -= 1;
            client.events += 1;
            writeln!(log, "{now_micros} {key:?} {event:?}").expect("a string takes everything");
            match event.what {
                ReplyEvent::Started { .. } => {
                    started.insert(event.agent, event.reply_id);
                }
                ReplyEvent::Finished { reason, .. } => {
                    let is_timed_out = reason == FinishReason::TimedOut;
                    let may_time_out = has_deadline || client.has_stalled;
                    assert!(!is_timed_out || may_time_out, "{event:?} of {client:?}");
                    ended.push((event.agent, event.reply_id));
                }
                _ => {}
            }
            hear(heard, event);
            Ok(())
        };
        match core.advance(now_micros, &mut emit) {
            Ok(advance) => advance,
            Err(error) => {
                assert!(error.is_of_device() && !self.has_fallen_back, "{error}");
                self.has_fallen_back = true;
                self.setting.fall_back(&mut self.core, &error);
                Advance::Again
            }
        }
    }

    /// The device thread parks when the core is idle: another call changes nothing.
    fn check_idle(&mut self) {
        let before = (self.core.stats().steps, self.log.len());
        let advance = self.advance();
        let after = (self.core.stats().steps, self.log.len());
        assert_eq!((advance, after), (Advance::Idle, before), "{}", describe(&self.core));
    }

    /// Deltas of a complete reply join to the decoding of its tokens, if its agent still has them:
    /// no later reply has started, not even a reply whose events the client has not received, and
    /// no background prefill.
    pub(super) fn check_ended_texts(&mut self) {
        for (agent, reply_id) in std::mem::take(&mut self.ended) {
            let slot = self.core.agents.slot_of(agent);
            let state = slot.and_then(|slot| self.core.agents.get(slot));
            let Some(state) = state.filter(|state| !state.sequence.tokens().is_empty()) else {
                continue;
            };
            let heard = &self.heard[&reply_id];
            // Calls are tokens of the sequence, and not text.
            let has_calls = heard.usage.call_tokens > 0;
            let is_complete = heard.ends == [Ok(FinishReason::Length)] && !has_calls;
            let is_last = self.started.get(&agent) == Some(&reply_id);
            let hears_all = self.core.clients.has_received_all(state.client);
            let is_kept = !self.setting.options.background_prefill;
            if !is_complete || !is_last || !hears_all || !is_kept {
                continue;
            }
            let said = &state.sequence.tokens()[heard.usage.prompt_tokens as usize..];
            let bytes =
                said.iter().flat_map(|&token| self.core.model_text.tokenizer.text_bytes(token));
            let bytes: Vec<u8> = bytes.copied().collect();
            assert_eq!(heard.text, String::from_utf8_lossy(&bytes), "{reply_id:?}");
        }
    }

    pub(super) fn is_open_for(&self, key: ClientKey) -> bool {
        self.heard.values().any(|reply| reply.client == Some(key) && reply.ends.is_empty())
    }

    /// The core works while no client stalls or pauses.
    pub(super) fn check_progress(&mut self) {
        let (stats, now_micros) = (self.core.stats(), self.now_micros());
        let progress = (stats.steps, stats.steps_done, self.log.len());
        let is_open = self.heard.values().any(|reply| reply.ends.is_empty());
        let runs = |client: &Client| client.does_its_part() && !client.is_paused;
        let is_due = is_open && !self.is_budget_zero && self.clients.iter().all(runs);
        if progress != self.progress || !is_due {
            (self.progress, self.progress_micros) = (progress, now_micros);
        }
        let silent_micros = now_micros - self.progress_micros;
        if silent_micros >= MAX_SILENCE_MICROS {
            panic!("{silent_micros} µs of silence\n{}", describe(&self.core));
        }
    }

    /// Every client that does its part makes progress, independent of the others.
    pub(super) fn check_liveness(&mut self) {
        let now_micros = self.now_micros();
        // Replies of a paused client keep their slots.
        let is_held = self.is_budget_zero || self.clients.iter().any(|client| client.is_paused);
        let open = self.heard.values().filter(|reply| reply.ends.is_empty()).count() as u64;
        for place in 0..self.clients.len() {
            let client = &self.clients[place];
            let agents = self.core.agents.iter().map(|(_, agent)| agent);
            let steps =
                agents.filter(|agent| agent.client == client.key).map(|a| a.sequence.last_step());
            let progress = (client.events, steps.max().unwrap_or(0));
            let is_due = !is_held && client.does_its_part() && self.is_open_for(client.key);
            let client = &mut self.clients[place];
            if progress != client.progress || !is_due {
                (client.progress, client.progress_micros) = (progress, now_micros);
                client.open = open;
            }
            let silent_micros = now_micros - client.progress_micros;
            if silent_micros >= client.max_silence_micros() {
                let state = describe(&self.core);
                panic!("{silent_micros} µs of silence: {:?}\n{state}", self.clients);
            }
        }
    }
}
