//! Random actions of hosts.

use walla_plan::Detail;

use super::*;
use crate::api::ConversationEdit;

impl Simulation {
    pub(super) fn act(&mut self) {
        match self.draw(34) {
            0..=3 if self.agents.len() < MAX_AGENTS => {
                let place = self.pick_client();
                self.add_agent(self.clients[place].key);
            }
            4..=21 => self.act_on_an_agent(),
            22..=26 => self.act_on_a_reply(),
            27..=30 => self.act_on_a_client(),
            _ => self.act_on_the_engine(),
        }
    }

    fn pick_client(&mut self) -> usize {
        let count = self.clients.len() as u32;
        self.draw(count) as usize
    }

    fn act_on_an_agent(&mut self) {
        if self.agents.is_empty() {
            return;
        }
        let count = self.agents.len() as u32;
        let at = self.draw(count) as usize;
        let (agent, client) = self.agents[at];
        match self.draw(16) {
            0 => {
                let spec = Box::new(self.setting.draws.spec());
                self.command(client, Command::ChangeAgent { agent, spec });
            }
            1 => {
                let detail = self.pick(&[Detail::Full, Detail::Reduced, Detail::Background]);
                self.command(client, Command::SetDetail { agent, detail });
            }
            2 => {
                let turns = self.turns();
                self.command(client, Command::AppendTurns { agent, turns });
            }
            3 if self.one_in(3) => {
                let turns = self.turns();
                self.command(client, Command::SetConversation { agent, turns });
            }
            5 if self.agents.len() < MAX_AGENTS => {
                let source = agent;
                let agent = AgentId(self.name());
                self.agents.push((agent, client));
                self.command(client, Command::ForkAgent { agent, source, spec: None });
            }
            6 => {
                let edit = ConversationEdit::Rewind { turns: 1 };
                self.command(client, Command::EditConversation { agent, edit });
            }
            4 if count > 2 => {
                self.agents.swap_remove(at);
                self.command(client, Command::RemoveAgent { agent });
            }
            _ => self.ask(client, agent),
        }
    }

    /// Up to three turns.
    fn turns(&mut self) -> Vec<Turn> {
        let speakers = [Speaker::Agent, Speaker::Observation, Speaker::User];
        let count = self.draw(4) as usize;
        let turns = speakers.into_iter().take(count);
        turns.map(|speaker| Turn::new(speaker, "Lo é.")).collect()
    }

    /// Cancels or interrupts a reply, which may have ended or wait for its agent.
    fn act_on_a_reply(&mut self) {
        if self.asks.is_empty() {
            return;
        }
        let count = self.asks.len() as u32;
        let at = self.draw(count) as usize;
        let (agent, reply_id) = self.asks[at];
        let client = self.heard[&reply_id].client.expect("a client asked");
        if self.one_in(2) {
            return self.command(client, Command::Cancel { agent, reply_id });
        }
        let heard_bytes = self.pick(&[0, 1, 3, 10, u32::MAX]);
        self.command(client, Command::CancelHeard { agent, reply_id, heard_bytes });
    }

    fn act_on_a_client(&mut self) {
        let place = self.pick_client();
        match self.draw(10) {
            0..=2 => {
                self.clients[place].room = self.pick(&[0, 1, 5, usize::MAX]);
                self.sleeps_until_micros = 0;
            }
            3 | 4 => {
                let begins = !self.clients[place].grants;
                self.clients[place].grants = begins || self.one_in(2);
            }
            5 | 6 => {
                let is_paused = !self.clients[place].is_paused && self.one_in(2);
                self.pause(place, is_paused);
            }
            7 | 8 => self.join(),
            _ if self.clients.len() > 1 && self.one_in(2) => self.leave(place),
            _ => {}
        }
    }

    fn act_on_the_engine(&mut self) {
        match self.draw(5) {
            0 => {
                let pages = 9 + self.draw(30);
                self.control(Control::KvTokens(16 * pages));
            }
            1 => {
                let micros = self.pick(&[None, Some(0), Some(400), Some(3_000)]);
                self.set_budget(micros);
            }
            2 if self.one_in(6) => self.setting.handle.lose(),
            // A late frame, sometimes by an hour.
            3 => {
                let micros = self.pick(&[50_000, 400_000]);
                self.setting.clock.advance(micros);
            }
            4 if self.one_in(8) => {
                self.setting.clock.advance(HOUR_MICROS);
                let now_micros = self.now_micros();
                self.progress_micros = now_micros;
                self.clients.iter_mut().for_each(|client| client.progress_micros = now_micros);
            }
            _ => {}
        }
    }
}
