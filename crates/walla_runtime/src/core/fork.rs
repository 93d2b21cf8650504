//! Changes of conversations, and copies of agents.
//!
//! A changed conversation needs no change of the cache: the next prompt is compared with it token
//! by token. A copy shares the evaluated tokens of its source.

use walla_types::SeqId;

use super::Core;
use crate::api::{AgentId, AgentSpec, ConversationEdit};
use crate::engine_core::ClientKey;
use crate::history::History;

impl Core {
    /// Cancels the asks of an agent, and changes its conversation.
    pub(super) fn edit(
        &mut self,
        client: ClientKey,
        id: AgentId,
        edit: ConversationEdit,
        now_micros: u64,
    ) {
        self.cancel(client, id, None, now_micros);
        let source = edit.source().and_then(|source| self.agents.of_client(client, source));
        let copied = source.map(|source| source.history.copy());
        let Some(agent) = self.agents.of_client(client, id) else { return };
        agent.history.edit(edit, copied);
        agent.background.outdate();
    }

    /// Adds a copy of an agent.
    pub(super) fn fork(
        &mut self,
        client: ClientKey,
        id: AgentId,
        source: AgentId,
        spec: Option<Box<AgentSpec>>,
    ) {
        let known = self.agents.of_client(client, source);
        let (spec, history) = match (spec, known) {
            (Some(mut spec), _) => {
                let turns = std::mem::take(&mut spec.turns);
                (*spec, History::new(turns))
            }
            (None, Some(source)) => (source.latest_spec().clone(), source.history.copy()),
            (None, None) => return,
        };
        if self.agents.add(client, id, spec)
            && let Some(agent) = self.agents.of_client(client, id)
        {
            agent.history = history;
            if let (Some(from), Some(to)) = (self.agents.slot_of(source), self.agents.slot_of(id)) {
                self.share_sequence(from, to);
            }
        }
    }

    /// Lets an empty sequence begin with all evaluated tokens of another one.
    ///
    /// Tokens in a partly filled page are shared too: the ledger copies the page for the first of
    /// both sequences that writes to it. A recurrent state covers all submitted tokens, so it is
    /// copied only if they are evaluated; otherwise the next prompt begins with a snapshot.
    fn share_sequence(&mut self, from: usize, to: usize) {
        let Some(source) = self.agents.get(from) else { return };
        let tokens = source.sequence.copyable().to_vec();
        let is_loaded = source.sequence.is_loaded();
        let (length, reached) = (tokens.len() as u32, source.sequence.reached());
        if length == 0 || !self.kv.has_commands() {
            return;
        }
        // A recurrent state covers all submitted tokens, so it is shared as a whole or not at all.
        let is_shared = if self.kv.is_recurrent() {
            length == self.kv.len(from) && self.kv.copy_whole(SeqId(from as u32), SeqId(to as u32))
        } else {
            self.kv.share(from, to, ..length)
        };
        let ticks = self.budget.ticks;
        if let Some(agent) = self.agents.get_mut(to).filter(|_| is_shared) {
            agent.sequence.begin(&tokens, ticks);
            agent.sequence.share(length, reached);
            if is_loaded {
                agent.sequence.load(length, reached);
            }
        }
    }
}
