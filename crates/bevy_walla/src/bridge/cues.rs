//! Cues of a reply, between the deltas of the engine and the outgoing events.

use bevy_ecs::prelude::*;
use walla_runtime::{CuePiece, CueSplitter, Cues, FinishReason, InlineText};

use super::publish::{Announcer, Sentence, announce};
use super::{AskId, OpenAsk, Record};
use crate::cues::{AgentCues, ReplyCue};
use crate::reply::ReplyDelta;
use crate::sentence::end_of;
use crate::speech::Speech;

/// The reply in progress of an agent with cues.
#[derive(Default)]
pub(super) struct Separation {
    cues: Cues,
    splitter: CueSplitter,
    /// The speech so far.
    speech: String,
    /// Tokens that are in no delta yet: cues have none.
    tokens: u32,
    /// Parts of one delta. Empty between deltas.
    parts: Vec<Part>,
}

/// A part of a delta.
enum Part {
    /// Speech up to this length of all speech.
    Speech(usize),
    Cue(ReplyCue),
}

impl Separation {
    /// The speech so far.
    pub fn speech(&self) -> &str {
        &self.speech
    }

    /// Bytes of the reply up to the end of this much speech.
    pub fn reply_bytes(&self, spoken_bytes: usize) -> usize {
        self.splitter.reply_bytes(spoken_bytes)
    }

    /// Takes more text, or the end of the reply.
    fn take(
        &mut self,
        agent: Entity,
        AskId { reply_id, tag }: AskId,
        text: Result<&str, FinishReason>,
    ) {
        let Self { cues, splitter, speech, parts, .. } = self;
        let take = |piece: CuePiece<'_>| match piece {
            CuePiece::Speech(text) => {
                speech.push_str(text);
                parts.push(Part::Speech(speech.len()));
            }
            CuePiece::Cue(cue) => {
                let [name, text] = [cue.name, cue.text].map(first_part);
                let (at_bytes, reply_bytes) = (cue.at_bytes as u32, cue.reply_bytes as u32);
                let cue = ReplyCue { agent, reply_id, tag, name, text, at_bytes, reply_bytes };
                parts.push(Part::Cue(cue));
            }
        };
        match text {
            Ok(text) => splitter.push(cues, text, take),
            Err(reason) => splitter.finish_as(cues, reason, take),
        }
    }
}

/// The beginning of a text, as much as fits.
fn first_part<const N: usize>(text: &str) -> InlineText<N> {
    InlineText::parts(text).next().unwrap_or_default()
}

impl Record {
    /// A reply begins. `cues`: of an agent that has them.
    pub(super) fn begin_cues(&mut self, at: usize, cues: Option<&AgentCues>) {
        let Some(AgentCues(cues)) = cues.filter(|_| !self.is_aside(at)) else {
            self.cues = None;
            return;
        };
        let separation = self.cues.get_or_insert_default();
        if separation.cues != *cues {
            separation.cues.clone_from(cues);
        }
        separation.splitter.clear();
        separation.speech.clear();
        separation.tokens = 0;
    }

    /// Publishes the speech and the cues of a delta, or of the text that was held back until the
    /// end of the reply, which has this reason.
    pub(super) fn push_separated(
        &mut self,
        at: usize,
        delta: Result<(&str, u32), FinishReason>,
        mut speech: Option<&mut Speech>,
        out: &mut Announcer,
    ) {
        let Some(ask) = self.asks.get_mut(at) else { return };
        let (agent, id) = (self.entity, OpenAsk::id(ask));
        let AskId { reply_id, tag } = id;
        let Some(separation) = &mut self.cues else { return };
        if let Ok((text, tokens)) = delta {
            ask.turn.push_str(text);
            separation.tokens += tokens;
        }
        let begin = separation.speech.len();
        separation.take(agent, id, delta.map(|(text, _)| text));
        let Separation { splitter, speech: spoken, tokens, parts, .. } = &mut **separation;
        let mut from = begin;
        for part in parts.drain(..) {
            let end = match part {
                Part::Speech(end) => end,
                Part::Cue(cue) => {
                    announce(&mut out.commands, &mut out.reply_cue, cue);
                    continue;
                }
            };
            let new = spoken.get(from..end).unwrap_or_default();
            from = end;
            for text in InlineText::parts(new) {
                let delta =
                    ReplyDelta { agent, reply_id, tag, text, tokens: std::mem::take(tokens) };
                announce(&mut out.commands, &mut out.reply_delta, delta);
            }
            if let Some(speech) = &mut speech {
                speech.push_text(new);
            }
            self.sentences.push(new, |text| {
                self.sentence_end = end_of(text, spoken, self.sentence_end);
                let end_bytes = splitter.reply_bytes(self.sentence_end) as u32;
                out.said(agent, id, Sentence { text, end_bytes, is_fragment: false });
            });
        }
    }
}
