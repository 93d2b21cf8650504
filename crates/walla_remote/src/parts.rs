//! A streamed reply in parts: reasoning, speech, calls.
//!
//! No input or output here: the same chunks give the same parts.

use serde_json::Value;
use walla_grammar::{
    ActionSet, CallMarkers, CallReader, MalformedCall, ParsedCall, Piece as ReplyPiece,
    UnmarkedCalls,
};
use walla_runtime::{FinishReason, RemoteError, TokenLogprobs};
use walla_types::TokenId;

use crate::calls::OpenCalls;
use crate::chunk::{CallDelta, Choice, Chunk, Counts, Logprob, Piece, error_message};

/// A part of a reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    Speech(String),
    Token(TokenLogprobs),
    Call(Result<ParsedCall, MalformedCall>),
}

/// A part of text; `None`: a call begins.
fn part_of(piece: ReplyPiece<'_>) -> Option<Part> {
    match piece {
        ReplyPiece::Speech(_, text) => {
            Some(Part::Speech(String::from_utf8_lossy(text).into_owned()))
        }
        ReplyPiece::Opened => None,
        ReplyPiece::Call(call) => Some(Part::Call(call)),
    }
}

/// Limits and actions of a reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// The actions that may be called; `None`: none.
    pub actions: Option<ActionSet>,
    /// Actions whose calls may be text of the reply; `None`: the reply is data.
    pub unmarked: Option<(ActionSet, UnmarkedCalls)>,
    pub max_calls: u32,
    pub max_call_bytes: usize,
    /// Maximum bytes of all parts.
    pub max_reply_bytes: usize,
    pub stop_strings: Vec<String>,
    /// The agent wants candidates.
    pub has_candidates: bool,
}

/// Reads the chunks of one reply.
#[derive(Debug)]
pub(crate) struct Reader {
    rules: Rules,
    tags: Tags,
    calls: OpenCalls,
    /// Finds calls in the text, of a server that does not find them.
    reader: Option<CallReader>,
    calls_ended: u32,
    bytes: usize,
    /// Chunks with text: an estimate of the tokens.
    texts: Estimate,
    /// A choice has arrived, possibly without text.
    has_begun: bool,
    /// Counts without a choice have arrived behind it, which no server sends before the end.
    has_final_counts: bool,
    finish: Option<FinishReason>,
    counts: Option<Counts>,
}

/// Numbers of chunks with text.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    speech: u32,
    reasoning: u32,
}

/// How a reply has ended, and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub reason: FinishReason,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub reply_tokens: u32,
    pub reasoning_tokens: u32,
}

impl Reader {
    pub fn new(mut rules: Rules) -> Self {
        let reader = rules.unmarked.take().map(|unmarked| {
            let mut reader = CallReader::new(CallMarkers::text_only());
            reader.begin(rules.max_call_bytes, Some(unmarked));
            reader
        });
        Self {
            reader,
            calls: OpenCalls::new(rules.actions.clone(), rules.max_call_bytes),
            rules,
            tags: Tags::default(),
            calls_ended: 0,
            bytes: 0,
            texts: Estimate::default(),
            has_begun: false,
            has_final_counts: false,
            finish: None,
            counts: None,
        }
    }

    /// Bytes of text, reasoning and calls so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the server has said how the reply ends. Counts may follow.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Whether nothing that follows matters.
    pub fn is_complete(&self) -> bool {
        self.finish.is_some() && self.counts.is_some()
    }

    /// Reads the JSON text of a chunk.
    ///
    /// # Errors
    /// The text is not a chunk, reports an error, or exceeds a limit.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) -> Result<(), RemoteError> {
        let chunk: Chunk = serde_json::from_str(text)
            .map_err(|error| RemoteError::Protocol(format!("an event is no chunk: {error}")))?;
        if let Some(error) = chunk.failure(text) {
            let code = error.get("code").and_then(Value::as_u64);
            let status = code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            return Err(RemoteError::Failed { status, message: error_message(&error) });
        }
        let choices = chunk.choices.unwrap_or_default();
        self.has_final_counts = self.has_begun && choices.is_empty() && chunk.usage.is_some();
        self.counts = chunk.usage.or(self.counts);
        // Only one choice was requested.
        for choice in choices.into_iter().filter(|choice| choice.index == 0) {
            self.has_begun = true;
            if self.finish.is_none() {
                self.read(choice, parts)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, choice: Choice, parts: &mut Vec<Part>) -> Result<(), RemoteError> {
        if self.rules.has_candidates {
            let tokens = choice.logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default();
            parts.extend(tokens.iter().filter_map(token).map(Part::Token));
        }
        if let Some(delta) = choice.delta.or(choice.message) {
            let reasoning = delta.reasoning_content.filter(|text| !text.is_empty());
            let reasoning = reasoning.or(delta.reasoning).map(Piece::Reasoning);
            let refusal = delta.refusal.map(Piece::Speech);
            for piece in reasoning.into_iter().chain(delta.content.0).chain(refusal) {
                self.read_piece(piece, parts)?;
            }
            for call in delta.tool_calls.unwrap_or_default() {
                self.read_call(call, parts)?;
                if self.finish.is_some() {
                    return Ok(());
                }
            }
        }
        if let Some(reason) = choice.finish_reason.as_deref().filter(|reason| !reason.is_empty()) {
            self.finish = Some(self.reason(reason, choice.stop_reason.as_ref())?);
            self.flush(reason == "length", parts);
        }
        Ok(())
    }

    fn read_piece(&mut self, piece: Piece, parts: &mut Vec<Part>) -> Result<(), RemoteError> {
        match piece {
            Piece::Speech(text) => {
                self.count(text.len())?;
                self.speak(&text, parts);
            }
            Piece::Reasoning(text) if text.is_empty() => {}
            Piece::Reasoning(text) => {
                self.count(text.len())?;
                self.texts.reasoning += 1;
                parts.push(Part::Reasoning(text));
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), RemoteError> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = self.rules.max_reply_bytes;
        if self.bytes > limit { Err(RemoteError::TooLarge { limit }) } else { Ok(()) }
    }

    fn speak(&mut self, text: &str, parts: &mut Vec<Part>) {
        let mut found = Vec::new();
        self.tags.push(text, &mut found);
        self.take(found, parts);
    }

    /// Separates calls that are text.
    fn take(&mut self, found: Vec<Part>, parts: &mut Vec<Part>) {
        let mut separated = Vec::new();
        for part in found {
            match (part, &mut self.reader) {
                (Part::Speech(text), Some(reader)) => {
                    let mut found = |piece: ReplyPiece<'_>| separated.extend(part_of(piece));
                    reader.push(TokenId(0), text.as_bytes(), &mut found);
                }
                (part, _) => separated.push(part),
            }
        }
        self.take_separated(separated, parts);
    }

    fn take_separated(&mut self, found: Vec<Part>, parts: &mut Vec<Part>) {
        for part in found {
            match part {
                // Nothing follows the last call.
                _ if self.finish == Some(FinishReason::CallLimit) => {}
                Part::Call(call) => {
                    let call = call.and_then(|call| self.calls.admit(call));
                    self.end_call(call, parts);
                }
                Part::Speech(_) => {
                    self.texts.speech += 1;
                    parts.push(part);
                }
                _ => {
                    self.texts.reasoning += 1;
                    parts.push(part);
                }
            }
        }
    }

    fn read_call(&mut self, delta: CallDelta, parts: &mut Vec<Part>) -> Result<(), RemoteError> {
        if let Some(function) = &delta.function {
            let name = function.name.as_ref().map_or(0, String::len);
            let arguments = function.arguments.as_ref().map_or(0, |of| of.text.len());
            self.count(name + arguments)?;
        }
        self.calls.push(delta);
        while self.finish.is_none()
            && let Some(call) = self.calls.next_whole()
        {
            self.end_call(call, parts);
        }
        Ok(())
    }

    fn end_call(&mut self, call: Result<ParsedCall, MalformedCall>, parts: &mut Vec<Part>) {
        self.calls_ended += 1;
        if self.rules.max_calls > 0 && self.calls_ended >= self.rules.max_calls {
            // The reason of the server, if it came first, stays.
            self.finish.get_or_insert(FinishReason::CallLimit);
            self.calls.clear();
        }
        parts.push(Part::Call(call));
    }

    fn reason(&self, reason: &str, stop: Option<&Value>) -> Result<FinishReason, RemoteError> {
        Ok(match reason {
            "length" => FinishReason::Length,
            "content_filter" => return Err(RemoteError::Filtered),
            // SGLang and vLLM write it for a reply that they have given up.
            "error" | "abort" => {
                let message = format!("the server gave the reply up ({reason})");
                return Err(RemoteError::Interrupted(message));
            }
            _ => {
                let stop = stop.and_then(Value::as_str);
                let at = |stop| self.rules.stop_strings.iter().position(|text| text == stop);
                match stop.and_then(at) {
                    Some(index) => FinishReason::Stop { index: index as u32 },
                    None => FinishReason::EndOfTurn,
                }
            }
        })
    }

    /// The stream has ended, regularly if `is_done`. A server may leave the finish reason out.
    pub fn end_of_stream(&mut self, is_done: bool, parts: &mut Vec<Part>) {
        let is_whole = is_done && self.has_begun || self.has_final_counts;
        if self.finish.is_none() && is_whole {
            self.finish = Some(FinishReason::EndOfTurn);
            self.flush(false, parts);
        }
    }

    /// Passes on the text and call that were held back, because the reply has ended.
    pub fn flush(&mut self, is_cut: bool, parts: &mut Vec<Part>) {
        while let Some(call) = self.calls.next_at_end(is_cut) {
            self.end_call(call, parts);
        }
        let mut found = Vec::new();
        self.tags.finish(&mut found);
        self.take(found, parts);
        // Last: text that the tags have released may be the begin of a call.
        let mut found = Vec::new();
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut |piece| found.extend(part_of(piece)));
        }
        self.take_separated(found, parts);
    }

    /// The end of the reply, after the server has said it.
    pub fn end(&self) -> Option<End> {
        let reason = self.finish?;
        let Estimate { speech, reasoning } = self.texts;
        // Of a server that counts nothing.
        let estimate = Counts { completion_tokens: speech + reasoning, ..Counts::default() };
        let counts = self.counts.unwrap_or(estimate);
        let of_reasoning = counts.completion_tokens_details.and_then(|its| its.reasoning_tokens);
        let reasoning_tokens = of_reasoning.unwrap_or(reasoning).min(counts.completion_tokens);
        Some(End {
            reason,
            prompt_tokens: counts.prompt_tokens,
            cached_tokens: counts
                .prompt_tokens_details
                .and_then(|its| its.cached_tokens)
                .unwrap_or(0)
                .min(counts.prompt_tokens),
            reply_tokens: counts.completion_tokens - reasoning_tokens,
            reasoning_tokens,
        })
    }
}

/// A token with its id, if the server sends ids.
fn token(of: &Logprob) -> Option<TokenLogprobs> {
    let candidate = |of: &Logprob| Some((token_id(of)?, of.logprob?));
    let (token, log_probability) = candidate(of)?;
    let others = of.top_logprobs.as_deref().unwrap_or_default();
    let candidates = others.iter().filter_map(candidate).collect();
    Some(TokenLogprobs { token, log_probability, candidates })
}

/// The id, which vLLM writes as the token's text `token_id:7`.
fn token_id(of: &Logprob) -> Option<TokenId> {
    let spelled = || of.token.strip_prefix("token_id:")?.parse().ok();
    of.id.or_else(spelled).map(TokenId)
}

/// Separates `<think>` … `</think>` at the begin of a reply, which servers without a parser of
/// reasoning leave in the text.
#[derive(Debug, Default)]
struct Tags {
    state: TagState,
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TagState {
    /// Only white space, or the begin of the tag.
    #[default]
    Begin,
    Reasoning,
    /// Behind the reasoning: white space is left out.
    Behind,
    Speech,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

impl Tags {
    fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        if self.state == TagState::Speech {
            if !text.is_empty() {
                parts.push(Part::Speech(text.to_owned()));
            }
            return;
        }
        self.held.push_str(text);
        loop {
            match self.state {
                TagState::Begin => {
                    let begin = self.held.trim_start();
                    if let Some(rest) = begin.strip_prefix(OPEN) {
                        self.held = rest.to_owned();
                        self.state = TagState::Reasoning;
                    } else if OPEN.starts_with(begin) {
                        return;
                    } else {
                        self.state = TagState::Speech;
                    }
                }
                TagState::Reasoning => {
                    let close = self.held.find(CLOSE);
                    let end = close.unwrap_or_else(|| self.held.len() - overlap(&self.held, CLOSE));
                    let rest = self.held.split_off(end);
                    self.release(Part::Reasoning, parts);
                    self.held = rest;
                    if close.is_none() {
                        return;
                    }
                    self.held.drain(..CLOSE.len());
                    self.state = TagState::Behind;
                }
                TagState::Behind => {
                    let rest = self.held.trim_start().to_owned();
                    self.held = rest;
                    if self.held.is_empty() {
                        return;
                    }
                    self.state = TagState::Speech;
                }
                TagState::Speech => return self.release(Part::Speech, parts),
            }
        }
    }

    fn finish(&mut self, parts: &mut Vec<Part>) {
        match self.state {
            TagState::Reasoning => self.release(Part::Reasoning, parts),
            // White space is a reply, as in a local engine.
            TagState::Begin | TagState::Speech => self.release(Part::Speech, parts),
            TagState::Behind => {}
        }
    }

    fn release(&mut self, of: fn(String) -> Part, parts: &mut Vec<Part>) {
        if !self.held.is_empty() {
            parts.push(of(std::mem::take(&mut self.held)));
        }
    }
}

/// Bytes at the end of a text that are the begin of a tag.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&length| text.ends_with(&tag[..length])).unwrap_or(0)
}
