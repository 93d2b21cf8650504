//! Conversations of several agents and players: who speaks next, who hears what.
//!
//! A group is an entity with [`Group`]; its members are agents with [`MemberOf`] and a [`Name`]. A
//! player speaks with [`GroupSay`]. All members hear each line, with the name of its speaker
//! ([`Conversation::overhear`]), and a [policy](Group::policy) chooses the member that answers. The
//! members go on until the policy chooses no member, and a line of a player interrupts them.
//!
//! # Examples
//! ```
//! # use bevy_app::App;
//! # use bevy_ecs::prelude::*;
//! use bevy_walla::groups::{Group, GroupLine, GroupSay, MemberOf, WallaGroupPlugin};
//! use bevy_walla::prelude::*;
//!
//! fn setup(mut commands: Commands) {
//!     let table = commands.spawn(Group::default()).id();
//!     for (name, work) in [("Greta", "smith"), ("Odo", "innkeeper")] {
//!         let persona = format!("You are {name}, the {work} of Emberfall.");
//!         commands.spawn((Name::new(name), Agent::persona(persona), MemberOf(table)));
//!     }
//!     commands.trigger(GroupSay::new(table, "Alice", "Good evening! Odo, what is the news?"));
//! }
//!
//! # let mut app = App::new();
//! app.add_plugins(WallaGroupPlugin)
//!     .add_observer(|line: On<GroupLine>| println!("{}: {}", line.name, line.text));
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::entity::EntityHashMap;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::SystemParam;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

use crate::actions::AgentCalled;
use crate::agent::AgentReasoning;
use crate::ask::{Ask, Cancel, Prompt};
use crate::conversation::{Conversation, EditId};
use crate::cues::AgentCues;
use crate::reply::{FinishReason, ReplyError, ReplyFailed, ReplyFinished, ReplyId, Unsupported};
use crate::sentence::ReplySentence;
use crate::systems::WallaSystems;

mod policy;
mod repetition;

pub use policy::{GroupMember, GroupTurn, addressed_or_longest_silent};
use repetition::is_repeated;
pub use walla_runtime::MAX_NAME_BYTES;
use walla_runtime::name_line;

/// Lines that a group knows, and lines of players that may wait.
const MAX_LINES: usize = 64;

/// Attempts of a member at a line that is not a repetition.
const MAX_ATTEMPTS: u32 = 3;

/// Latest turns of an agent whose replies are lines. Replies to results of actions come late.
const MAX_TURNS: usize = 8;

/// Time that a member waits for the results of its actions. A game that answers late has set
/// [`AgentActions::result_wait`](crate::actions::AgentActions::result_wait).
const RESULT_WAIT: Duration = Duration::from_secs(30);

/// A conversation of agents and players. Its members are the agents with [`MemberOf`].
#[derive(Component, Clone, Copy, Debug)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Component, Default, Clone, Debug))]
#[require(Talk)]
pub struct Group {
    /// Chooses the next speaker; `None`: silence until a player speaks. Default:
    /// [`addressed_or_longest_silent`].
    pub policy: fn(&GroupTurn<'_>) -> Option<Entity>,
    /// Lines of agents in a row, without a line of a player, that the default policy allows.
    /// Default: 3.
    pub max_lines: u32,
    /// Whether a line of a player cuts off the member that speaks: a [`Cancel`], which also ends
    /// other asks of that member. Otherwise the line waits for the end of the reply. Default:
    /// `true`.
    pub interrupts: bool,
    /// Number of latest lines whose sentences no member may repeat. A line ends where it begins to
    /// repeat one; if nothing is left, the member is asked again, with another seed. Sentences of
    /// three words or fewer may be repeated, and an answer to a player may repeat the member's own
    /// lines: the player may have asked again. Default: 12; 0: no guard.
    pub unrepeated_lines: usize,
    /// Whether a reply begins with the name of its speaker ([`AskOptions::opening`], not a part of
    /// the reply), as the lines of the others do: otherwise many models write the name of another
    /// speaker. Not for agents that [reason](crate::agent::AgentReasoning), and not on engines
    /// without openings. Default: `true`.
    ///
    /// [`AskOptions::opening`]: crate::ask::AskOptions::opening
    pub begins_with_name: bool,
    /// Lines before its own that a member hears, at most: small models lose their way among many
    /// voices. `None`: all of them, when they are said. Default: `None`.
    pub overheard_lines: Option<usize>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            policy: addressed_or_longest_silent,
            max_lines: 3,
            interrupts: true,
            unrepeated_lines: 12,
            begins_with_name: true,
            overheard_lines: None,
        }
    }
}

/// The agent takes part in the conversation of a [`Group`]. It needs a [`Name`].
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Clone, Debug, PartialEq))]
#[relationship(relationship_target = GroupMembers)]
pub struct MemberOf(pub Entity);

/// The members of a [`Group`]: [`MemberOf`] writes it.
#[derive(Component, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Debug))]
#[relationship_target(relationship = MemberOf)]
pub struct GroupMembers(Vec<Entity>);

/// A player, or the game, speaks to a group: trigger it. The line is published, and a member is
/// asked, in the next `PostUpdate`. At most 64 lines wait; more are dropped, with a warning.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct GroupSay {
    /// An entity with [`Group`].
    #[event_target]
    pub group: Entity,
    /// Name of the speaker: one line of at most [`MAX_NAME_BYTES`] bytes, longer ones are cut.
    pub name: Arc<str>,
    /// The line. Untrusted. It must fit in the contexts of the members.
    pub text: String,
}

impl GroupSay {
    /// A line of a player.
    #[must_use]
    pub fn new(group: Entity, name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        Self { group, name: name.into(), text: text.into() }
    }
}

/// A line of a group's conversation has ended: of a player or of a member. While a member speaks,
/// its reply has the usual events.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct GroupLine {
    /// The group.
    #[event_target]
    pub group: Entity,
    /// The member; `None`: a player.
    pub speaker: Option<Entity>,
    /// Name of the speaker.
    pub name: Arc<str>,
    /// The line, without [cues](crate::cues).
    pub text: String,
}

/// No member speaks next in this group, until a player speaks. Also after a reply that failed, and
/// if the results of a member's actions do not come within 30 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct GroupSilent {
    /// The group.
    #[event_target]
    pub group: Entity,
}

/// Adds conversations of [`Group`]s. It needs [`WallaPlugin`](crate::WallaPlugin).
#[derive(Clone, Copy, Debug, Default)]
pub struct WallaGroupPlugin;

impl Plugin for WallaGroupPlugin {
    fn build(&self, app: &mut App) {
        #[cfg(feature = "reflect")]
        app.register_type::<Group>()
            .register_type::<MemberOf>()
            .register_type::<GroupMembers>()
            .register_type::<GroupSay>()
            .register_type::<GroupLine>()
            .register_type::<GroupSilent>();
        app.init_resource::<Speaking>()
            .add_observer(player_said)
            .add_observer(member_says)
            .add_observer(member_called)
            .add_systems(PostUpdate, go_on.before(WallaSystems::Collect))
            .add_observer(|end: On<ReplyFinished>, groups: Groups| {
                groups.ended((end.agent, end.tag), Ok((end.reply_id, end.reason)));
            })
            .add_observer(|end: On<ReplyFailed>, groups: Groups| {
                groups.ended((end.agent, end.tag), Err(&end.error));
            });
        #[cfg(feature = "speech")]
        app.add_observer(line_shortened);
    }
}

/// State of a conversation.
#[derive(Component, Default)]
struct Talk {
    /// The latest lines.
    lines: VecDeque<GroupLine>,
    /// Number of the latest of them that no member has heard: the last one becomes the question to
    /// the next speaker, so that memories precede it.
    unheard: usize,
    /// Lines of members since the latest line of a player.
    since_player: u32,
    /// Lines of players that wait for the end of a reply.
    waiting: VecDeque<(Arc<str>, String)>,
    turn: Option<Turn>,
    /// The next speaker is to be chosen, when the voice of the last one has ended.
    is_due: bool,
    /// The reply of the latest line, if that is a member's.
    last_reply: Option<ReplyId>,
}

#[cfg(feature = "speech")]
impl Talk {
    /// The speaker of the latest line, while its voice speaks.
    fn voice(&self, voices: &Voices) -> Option<Entity> {
        let speaker = self.lines.back()?.speaker?;
        voices.get(speaker).is_ok_and(crate::voice::Speaking::is_speaking).then_some(speaker)
    }
}

/// Voices of members.
#[cfg(feature = "speech")]
type Voices<'w, 's> = Query<'w, 's, &'static crate::voice::Speaking, With<crate::voice::Voice>>;

/// A member speaks.
struct Turn {
    agent: Entity,
    /// Tag of the ask, and its seed.
    tag: u64,
    seed: Option<u64>,
    /// Of the conversation when it was asked: after an edit, the agent does not know its calls.
    edit: Option<EditId>,
    attempts: u32,
    /// Bytes of the reply up to the end of its latest sentence.
    end_bytes: u32,
    is_cancelled: bool,
    /// The reply ends at `end_bytes`, also if its end was already on the way.
    is_cut: bool,
    /// It has called an action and said nothing: it continues when the game has answered.
    call: Call,
    /// The line that it answers; `None`: it continues after its own line.
    question: Option<(Arc<str>, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    None,
    /// In the reply in progress.
    Made,
    /// The reply has ended.
    Waiting {
        since: Instant,
    },
}

/// The latest turns of each agent: group and tag of the ask, oldest first. Also of an agent that
/// has left its group.
#[derive(Resource, Default)]
struct Speaking {
    groups: EntityHashMap<VecDeque<(Entity, u64)>>,
    /// Number of turns so far.
    turns: u64,
}

impl Speaking {
    /// The group in which an agent was asked with this tag.
    fn group(&self, agent: Entity, tag: u64) -> Option<Entity> {
        let turns = self.groups.get(&agent)?;
        turns.iter().find(|(_, of)| *of == tag).map(|(group, _)| *group)
    }
}

/// Groups and their members.
#[derive(SystemParam)]
struct Groups<'w, 's> {
    groups: Query<'w, 's, (&'static Group, Option<&'static GroupMembers>)>,
    /// Also of groups that are disabled while a member speaks.
    talks: Query<'w, 's, (Entity, &'static mut Talk), Allow<Disabled>>,
    names: Query<'w, 's, &'static Name, Allow<Disabled>>,
    #[cfg(feature = "speech")]
    voices: Voices<'w, 's>,
    reasoning: Query<'w, 's, &'static AgentReasoning, Allow<Disabled>>,
    agents: Query<'w, 's, (&'static mut Conversation, Option<&'static AgentCues>), Allow<Disabled>>,
    speaking: ResMut<'w, Speaking>,
    commands: Commands<'w, 's>,
}

fn player_said(said: On<GroupSay>, mut groups: Groups) {
    let (Ok((group, _)), Ok((_, mut talk))) =
        (groups.groups.get(said.group), groups.talks.get_mut(said.group))
    else {
        tracing::warn!(target: "walla::group", group = %said.group, "no group hears this line");
        return;
    };
    if talk.waiting.len() >= MAX_LINES {
        tracing::warn!(target: "walla::group", group = %said.group, "a line is dropped: too many wait");
        return;
    }
    talk.waiting.push_back((name_line(&said.name).into(), said.text.clone()));
    talk.is_due = true;
    // Its line has ended, its voice speaks on.
    #[cfg(feature = "speech")]
    if talk.turn.is_none()
        && group.interrupts
        && let Some(agent) = talk.voice(&groups.voices)
    {
        groups.commands.trigger(crate::voice::Interrupt { agent });
    }
    // No reply may follow: the game does not answer each call.
    if let Some(turn) = talk.turn.take_if(|turn| matches!(turn.call, Call::Waiting { .. })) {
        groups.commands.trigger(Cancel::new(turn.agent));
    }
    if let Some(turn) = talk.turn.as_mut().filter(|turn| group.interrupts && !turn.is_cancelled) {
        turn.is_cancelled = true;
        #[cfg(feature = "speech")]
        if groups.voices.contains(turn.agent) {
            return groups.commands.trigger(crate::voice::Interrupt { agent: turn.agent });
        }
        groups.commands.trigger(Cancel::new(turn.agent));
    }
}

/// A line that has ended was not heard to its end.
#[cfg(feature = "speech")]
fn line_shortened(cancel: On<Cancel>, mut groups: Groups) {
    let (Some(reply_id), Some(heard_bytes)) = (cancel.reply_id, cancel.heard_bytes) else { return };
    let Ok((conversation, cues)) = groups.agents.get(cancel.agent) else { return };
    let Some(reply) = conversation.reply(reply_id) else { return };
    let heard = &reply[..reply.floor_char_boundary(heard_bytes as usize)];
    let heard = match cues {
        Some(AgentCues(cues)) => cues.of_reply(heard, FinishReason::Cancelled).0,
        None => heard.to_owned(),
    };
    for (_, mut talk) in &mut groups.talks {
        if talk.last_reply != Some(reply_id) {
            continue;
        }
        let Some(line) = talk.lines.back_mut().filter(|line| line.speaker == Some(cancel.agent))
        else {
            continue;
        };
        let heard = starts_with_name(&heard, &line.name).unwrap_or(&heard).trim();
        line.text.truncate(line.text.floor_char_boundary(heard.len()));
        if line.text.is_empty() {
            talk.lines.pop_back();
            (talk.unheard, talk.last_reply) = (talk.unheard.saturating_sub(1), None);
        }
    }
}

/// Lets the next members speak. Not in the observers: a game that answers a silence with a line
/// would never return from them.
fn go_on(mut groups: Groups, mut due: Local<Vec<Entity>>) {
    for (group, mut talk) in &mut groups.talks {
        let is_over = |turn: &mut Turn| {
            let Call::Waiting { since } = turn.call else { return false };
            let now =
                groups.agents.get(turn.agent).ok().map(|(conversation, _)| conversation.edit());
            now.is_none() || now != turn.edit || since.elapsed() > RESULT_WAIT
        };
        if talk.turn.take_if(is_over).is_some() {
            groups.commands.trigger(GroupSilent { group });
        }
        // A disabled group continues when it is enabled.
        #[cfg(feature = "speech")]
        if talk.voice(&groups.voices).is_some() {
            continue;
        }
        if talk.is_due && groups.groups.contains(group) {
            talk.is_due = false;
            due.push(group);
        }
    }
    for group in due.drain(..) {
        groups.advance(group);
    }
}

fn member_called(call: On<AgentCalled>, mut groups: Groups) {
    let Some(group) = groups.speaking.group(call.agent, call.tag) else { return };
    if let Ok((_, mut talk)) = groups.talks.get_mut(group)
        && let Some(turn) = talk.turn.as_mut().filter(|turn| turn.tag == call.tag)
    {
        turn.call = Call::Made;
    }
}

/// Ends a line that repeats a sentence, or in which the member speaks for others.
fn member_says(sentence: On<ReplySentence>, mut groups: Groups) {
    let (agent, tag) = (sentence.agent, sentence.tag);
    let Some(entity) = groups.speaking.group(agent, tag) else { return };
    let (Ok((group, members)), Ok((_, mut talk))) =
        (groups.groups.get(entity), groups.talks.get_mut(entity))
    else {
        return;
    };
    let Talk { lines, turn, since_player, .. } = &mut *talk;
    let Some(turn) = turn.as_mut().filter(|turn| turn.tag == tag) else { return };
    let answers_player = *since_player == 0;
    let latest = lines.iter().rev().take(group.unrepeated_lines);
    let latest = latest.filter(|line| !answers_player || line.speaker != Some(agent));
    let latest = latest.map(|line| line.text.as_str());
    let others = members.into_iter().flat_map(|members| members.0.iter());
    let others = others.filter(|member| **member != turn.agent);
    let others = others.filter_map(|member| groups.names.get(*member).ok().map(Name::as_str));
    let players = lines.iter().filter(|line| line.speaker.is_none()).map(|line| &*line.name);
    let own = groups.names.get(agent).map_or("", Name::as_str);
    // Two may have the same name.
    let mut names = others.chain(players).filter(|name| !name.is_empty() && *name != own);
    if turn.is_cancelled {
        return;
    }
    let speaks_for = |name: &str| starts_with_name(&sentence.text, name).is_some();
    // A player gets an answer, even if it is a repetition.
    let is_free = answers_player && turn.attempts >= MAX_ATTEMPTS;
    if names.any(speaks_for) || !is_free && is_repeated(&sentence.text, latest) {
        (turn.is_cancelled, turn.is_cut) = (true, true);
        let reply_id = Some(sentence.reply_id);
        let cancel = Cancel { reply_id, ..Cancel::heard(agent, turn.end_bytes) };
        groups.commands.trigger(cancel);
    } else {
        turn.end_bytes = sentence.end_bytes;
    }
}

/// The ask with which a member answers a line, or continues without one.
fn question_of(agent: Entity, question: Option<&(Arc<str>, String)>) -> Ask {
    match question {
        Some((name, text)) => Ask::new(agent, Prompt::named(Arc::clone(name), text.as_str())),
        None => Ask::resume(agent),
    }
}

/// The rest of a text that begins with `NAME:`.
fn starts_with_name<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.strip_prefix(':')
}

impl Groups<'_, '_> {
    /// A reply has ended.
    fn ended(
        mut self,
        (agent, tag): (Entity, u64),
        outcome: Result<(ReplyId, FinishReason), &ReplyError>,
    ) {
        let Some(entity) = self.speaking.group(agent, tag) else { return };
        let conversation = self.agents.get(agent).ok();
        let Ok((_, mut talk)) = self.talks.get_mut(entity) else { return };
        // Without a turn it is a reply to results of actions, behind a line of the same turn.
        let mut turn = talk.turn.take_if(|turn| turn.tag == tag);
        let had_turn = turn.is_some();
        let cut = turn.as_ref().filter(|turn| turn.is_cut).map(|turn| turn.end_bytes as usize);
        let edit = conversation.map(|(conversation, _)| conversation.edit());
        let said =
            conversation.and_then(|(conversation, cues)| {
                let (reply_id, reason) = outcome.ok()?;
                let text = conversation.reply(reply_id)?;
                let most = cut.unwrap_or(text.len());
                let text = &text[..text.floor_char_boundary(most)];
                Some(cues.map_or_else(
                    || text.to_owned(),
                    |AgentCues(cues)| cues.of_reply(text, reason).0,
                ))
            });
        let name = self.names.get(agent).map_or_else(|_| "".into(), |name| Arc::from(&**name));
        let said = said.as_deref().unwrap_or_default().trim();
        let said = starts_with_name(said, &name).unwrap_or(said).trim();
        let is_interrupted = !talk.waiting.is_empty();
        talk.is_due |= had_turn;
        if !said.is_empty() {
            talk.since_player += 1;
            let text = said.to_owned();
            talk.last_reply = outcome.ok().map(|(reply_id, _)| reply_id);
            self.line(GroupLine { group: entity, speaker: Some(agent), name, text });
        } else if let Some(mut turn) = turn.take_if(|_| !is_interrupted) {
            let has_called = turn.call == Call::Made;
            let is_cancelled = matches!(outcome, Ok((_, FinishReason::Cancelled)));
            let knows_call = edit.is_some() && edit == turn.edit;
            if knows_call && has_called && outcome.is_ok() && !is_cancelled {
                turn.call = Call::Waiting { since: Instant::now() };
                (turn.is_cancelled, turn.is_cut, turn.end_bytes) = (false, false, 0);
                (talk.turn, talk.is_due) = (Some(turn), false);
                return;
            }
            if matches!(outcome, Err(ReplyError::Unsupported(Unsupported::Openings))) {
                let mut ask = question_of(agent, turn.question.as_ref());
                ask.options.seed = turn.seed;
                return self.ask(entity, ask, turn.question, turn.attempts);
            }
            // A reply that has called an action is not repeated: the action would be, too.
            if turn.is_cut && turn.attempts < MAX_ATTEMPTS && !has_called {
                let again = question_of(agent, turn.question.as_ref()).with_seed(tag);
                let again = self.with_name(entity, again);
                return self.ask(entity, again, turn.question, turn.attempts + 1);
            }
            // Its reply is empty, or its engine has failed.
            talk.is_due = false;
            self.hear_question(agent, turn, outcome.ok().map(|(reply, _)| reply));
            self.commands.trigger(GroupSilent { group: entity });
        } else if let Some(turn) = turn {
            self.hear_question(agent, turn, outcome.ok().map(|(reply, _)| reply));
        }
    }

    /// Adds a line to the conversation.
    fn line(&mut self, line: GroupLine) {
        let Ok((_, mut talk)) = self.talks.get_mut(line.group) else { return };
        if talk.lines.len() >= MAX_LINES {
            talk.lines.pop_front();
        }
        talk.lines.push_back(line.clone());
        talk.unheard = (talk.unheard + 1).min(MAX_LINES);
        self.commands.trigger(line);
    }

    /// Lets all members hear the latest lines. The next speaker does not hear the last one, which
    /// is returned: it is its question, unless the line is its own.
    fn hear(&mut self, group: Entity, next: Option<Entity>) -> Option<(Arc<str>, String)> {
        let (Ok((settings, members)), Ok((_, mut talk))) =
            (self.groups.get(group), self.talks.get_mut(group))
        else {
            return None;
        };
        let unheard = std::mem::take(&mut talk.unheard);
        let last = talk.lines.back().filter(|line| next.is_some() && line.speaker != next);
        let question = last.map(|line| (Arc::clone(&line.name), line.text.clone()));
        for &member in members.map_or(&[][..], |members| &members.0) {
            let is_next = next == Some(member);
            let count = match settings.overheard_lines {
                None => unheard,
                // Its own lines end the part that it has not heard.
                Some(most) if is_next => {
                    let of_others = talk.lines.iter().rev();
                    of_others.take_while(|line| line.speaker != next).count().min(most)
                }
                Some(_) => 0,
            };
            let skipped = usize::from(is_next && question.is_some());
            let lines = talk.lines.iter().rev().take(count).skip(skipped);
            let of_others = lines.filter(|line| line.speaker != Some(member));
            let of_others: Vec<_> = of_others.collect();
            if let Ok((mut conversation, _)) = self.agents.get_mut(member) {
                for line in of_others.into_iter().rev() {
                    conversation.overhear(Arc::clone(&line.name), line.text.as_str());
                }
            }
        }
        question
    }

    /// Lets a member hear its question, if that is in no exchange because the reply has no text.
    fn hear_question(&mut self, agent: Entity, turn: Turn, reply: Option<ReplyId>) {
        if let Ok((mut conversation, _)) = self.agents.get_mut(agent)
            && let Some((name, text)) = turn.question
            && reply.is_none_or(|reply| turn.is_cut || conversation.reply(reply).is_none())
        {
            conversation.overhear(name, text);
        }
    }

    /// Publishes the lines of players that wait, and lets the next member speak.
    fn advance(&mut self, group: Entity) {
        loop {
            let Ok((_, mut talk)) = self.talks.get_mut(group) else { return };
            if talk.turn.is_some() {
                return;
            }
            let Some((name, text)) = talk.waiting.pop_front() else { break };
            (talk.since_player, talk.last_reply) = (0, None);
            self.line(GroupLine { group, speaker: None, name, text });
        }
        let (Ok((settings, members)), Ok((_, talk))) =
            (self.groups.get(group), self.talks.get(group))
        else {
            return;
        };
        let known = |member: &Entity| {
            let silent_for = talk.lines.iter().rev().position(|its| its.speaker == Some(*member));
            let name = self.names.get(*member).ok()?.as_str();
            self.agents.contains(*member).then_some(GroupMember {
                agent: *member,
                name,
                silent_for,
            })
        };
        let members = members.map_or(&[][..], |members| &members.0);
        let members: Vec<_> = members.iter().filter_map(known).collect();
        let last = talk.lines.back();
        let (members, lines) = (&*members, talk.since_player);
        let turn = GroupTurn { members, last, lines, max_lines: settings.max_lines };
        match (settings.policy)(&turn) {
            Some(agent) if members.iter().any(|member| member.agent == agent) => {
                let question = self.hear(group, Some(agent));
                let ask = self.with_name(group, question_of(agent, question.as_ref()));
                self.ask(group, ask, question, 1);
            }
            _ => {
                self.hear(group, None);
                self.commands.trigger(GroupSilent { group });
            }
        }
    }

    /// Forgets agents that are gone, from time to time. The last reply of one ends later.
    fn forget_gone(&mut self) {
        if !self.speaking.turns.is_multiple_of(64) {
            return;
        }
        let Self { speaking, agents, talks, .. } = self;
        let speaks = |agent| {
            talks.iter().any(|(_, talk)| talk.turn.as_ref().is_some_and(|turn| turn.agent == agent))
        };
        speaking.groups.retain(|agent, _| agents.contains(*agent) || speaks(*agent));
    }

    fn with_name(&self, group: Entity, mut ask: Ask) -> Ask {
        let begins = self.groups.get(group).is_ok_and(|(group, ..)| group.begins_with_name);
        let reasons = self.reasoning.get(ask.agent).is_ok_and(|its| its.thinking);
        if let Ok(name) = self.names.get(ask.agent)
            && begins
            && !reasons
        {
            ask.options.opening = Some(Arc::new(format!("{name}:")));
        }
        ask
    }

    fn ask(
        &mut self,
        group: Entity,
        ask: Ask,
        question: Option<(Arc<str>, String)>,
        attempts: u32,
    ) {
        self.forget_gone();
        let Ok((_, mut talk)) = self.talks.get_mut(group) else { return };
        talk.is_due = false;
        self.speaking.turns += 1;
        // A tag that no game uses by chance.
        let tag = 0x6f75_705f_7475_726e ^ self.speaking.turns.rotate_left(32);
        let agent = ask.agent;
        talk.turn = Some(Turn {
            agent,
            tag,
            seed: ask.options.seed,
            edit: self.agents.get(agent).ok().map(|(conversation, _)| conversation.edit()),
            attempts,
            end_bytes: 0,
            is_cancelled: false,
            is_cut: false,
            call: Call::None,
            question,
        });
        let turns = self.speaking.groups.entry(agent).or_default();
        turns.push_back((group, tag));
        let surplus = turns.len().saturating_sub(MAX_TURNS);
        turns.drain(..surplus);
        self.commands.trigger(ask.with_tag(tag));
    }
}
