//! The dialogues of guests and visitor.

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::actions::ActionPolicy;
use bevy_walla::prelude::*;
use walla_examples::{name, persona};

use crate::Arguments;
use crate::printer::PrintHandle;
use crate::trade::{self, Goods};

/// A table changes its subject after this many replies, because two agents tend to agree with each
/// other for ever.
const REPLIES_PER_SUBJECT: u32 = 6;

/// Subjects of a table.
const SUBJECTS: [&str; 8] = [
    "Have you heard any news?",
    "But enough of that. What do you sell?",
    "By the way. Do you need any help?",
    "Where were you born?",
    "Let me ask you something. What do you dream of?",
    "What are you drinking?",
    "Tell me something. What are you afraid of?",
    "How goes the work?",
];

/// Speech rate in bytes per second (brisk): a listener answers at the end of the speech.
const SPEECH_BYTES_PER_SECOND: f64 = 20.0;

/// Interval of the visitor's asks. The visitor asks each guest a question and then buys something,
/// if the guest sells anything.
const VISITOR_ASKS_EVERY: Duration = Duration::from_secs(2);

/// Tag of the visitor's asks; guests ask each other without a tag.
const VISITOR: u64 = 1;

/// Spawns the guests and runs their dialogues.
pub struct DialoguePlugin {
    agents: usize,
    reply_tokens: u32,
    hurry: bool,
}

/// A guest, by place.
#[derive(Component)]
struct Guest {
    place: usize,
    /// Replies to the neighbour.
    replies: u32,
    /// Words for the neighbour, and the end of their speech.
    saying: Option<(Instant, String)>,
}

/// The guest at the same table.
#[derive(Component)]
struct Neighbor(Entity);

/// When the model was loaded, and the number of the visitor's turns to ask.
#[derive(Resource, Default)]
pub struct Evening {
    began: Option<Instant>,
    visitor_turns: u32,
}

impl DialoguePlugin {
    pub fn new(arguments: &Arguments) -> Self {
        let Arguments { agents, reply_tokens, hurry, .. } = *arguments;
        Self { agents, reply_tokens, hurry }
    }
}

impl Plugin for DialoguePlugin {
    fn build(&self, app: &mut App) {
        let Self { agents, reply_tokens, hurry } = *self;
        app.init_resource::<Evening>()
            .add_systems(Startup, move |commands: Commands| seat(commands, agents, reply_tokens))
            .add_systems(Update, (visit, pass_on).chain().run_if(walla_ready))
            .add_observer(open)
            .add_observer(print_sentence)
            .add_observer(unsaid)
            .add_observer(
                move |finished: On<ReplyFinished>, guests: Query<(&mut Guest, &Conversation)>| {
                    said(&finished, guests, hurry);
                },
            );
    }
}

/// Two at each table; a guest without a neighbour waits for the visitor.
fn seat(mut commands: Commands, agents: usize, reply_tokens: u32) {
    let guests: Vec<Entity> =
        (0..agents).map(|place| spawn(&mut commands, place, reply_tokens)).collect();
    for table in guests.chunks_exact(2) {
        if let [left, right] = *table {
            commands.entity(left).insert(Neighbor(right));
            commands.entity(right).insert(Neighbor(left));
        }
    }
}

fn spawn(commands: &mut Commands, place: usize, reply_tokens: u32) -> Entity {
    let name = name(place);
    let scene =
        "You sit in the tavern and talk with the other guests. Answer in one or two sentences.";
    let persona = persona(place);
    commands
        .spawn((
            Guest { place, replies: 0, saying: None },
            Agent::persona(format!("{} {scene}", persona.text)),
            AgentSeed::from_name(&name),
            ReplyLimits::tokens(reply_tokens).stop_at("\n"),
            VoiceRate::tokens_per_second(6.0),
            Goods::of(&persona),
            Name::new(name),
        ))
        .id()
}

/// When the model is loaded, the second guest of each table opens the dialogue with the first.
fn open(
    _: On<WallaReady>,
    guests: Query<(Entity, &Guest, &Neighbor)>,
    names: Query<&Name>,
    mut evening: ResMut<Evening>,
    mut commands: Commands,
) {
    evening.began = Some(Instant::now());
    for (agent, guest, neighbor) in &guests {
        if guest.place % 2 != 0 {
            continue;
        }
        let Ok(name) = names.get(neighbor.0) else { continue };
        commands.ask(agent, format!("*{name} sits down beside you.*"));
    }
}

/// Schedules a guest's words for the neighbour, at the end of their speech.
fn said(finished: &ReplyFinished, mut guests: Query<(&mut Guest, &Conversation)>, hurry: bool) {
    if finished.tag == VISITOR {
        return;
    }
    let Ok((mut guest, talk)) = guests.get_mut(finished.agent) else { return };
    guest.replies += 1;
    let words = talk.reply(finished.reply_id).unwrap_or_default().trim();
    let subject = guest.place + (guest.replies / REPLIES_PER_SUBJECT) as usize;
    let new_subject = words.is_empty() || guest.replies.is_multiple_of(REPLIES_PER_SUBJECT);
    let words = if new_subject { SUBJECTS[subject % SUBJECTS.len()] } else { words };
    let seconds = if hurry { 0.0 } else { words.len() as f64 / SPEECH_BYTES_PER_SECOND };
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    guest.saying = Some((until, words.to_owned()));
}

/// Reports a failed reply; if it was for the neighbour, the dialogue at that table ends.
fn unsaid(failed: On<ReplyFailed>, names: Query<&Name>, printer: Res<PrintHandle>) {
    if let Ok(name) = names.get(failed.agent) {
        printer.print(format!("          {name} says nothing: {}", failed.error));
    }
}

/// Passes words to the neighbour unchanged at the end of their speech.
fn pass_on(mut guests: Query<(&mut Guest, &Neighbor)>, mut commands: Commands) {
    let now = Instant::now();
    for (mut guest, neighbor) in &mut guests {
        if guest.saying.as_ref().is_some_and(|(until, _)| *until <= now)
            && let Some((_, words)) = guest.saying.take()
        {
            commands.ask(neighbor.0, words);
        }
    }
}

/// Every few seconds the visitor asks a guest, who answers after the current reply.
fn visit(
    guests: Query<(Entity, &Guest)>,
    sellers: Query<Entity, With<AgentActions>>,
    mut evening: ResMut<Evening>,
    printer: Res<PrintHandle>,
    mut commands: Commands,
) {
    let Some(began) = evening.began else { return };
    if began.elapsed() < VISITOR_ASKS_EVERY * (evening.visitor_turns + 2) {
        return;
    }
    let turn = evening.visitor_turns as usize;
    evening.visitor_turns += 1;
    let place = turn / 2 % guests.iter().len().max(1);
    let Some((agent, _)) = guests.iter().find(|(_, guest)| guest.place == place) else { return };
    let persona = persona(place);
    let words = if turn.is_multiple_of(2) {
        for left in &sellers {
            commands.entity(left).remove::<AgentActions>();
        }
        if let Some(actions) = trade::actions(&persona) {
            commands.entity(agent).insert(actions);
        }
        Some(persona.question)
    } else {
        persona.order
    };
    if let Some(words) = words {
        printer.print(evening.line("Visitor", &format!("({}?) {words}", name(place))));
        commands.trigger(Ask::new(agent, words).with_tag(VISITOR).with_policy(ActionPolicy::Auto));
    }
}

fn print_sentence(
    sentence: On<ReplySentence>,
    names: Query<&Name>,
    evening: Res<Evening>,
    printer: Res<PrintHandle>,
) {
    if let Ok(name) = names.get(sentence.agent) {
        printer.print(evening.line(name, &sentence.text));
    }
}

impl Evening {
    /// A line to print: the time, a name, and words or an action.
    pub fn line(&self, name: &str, words: &str) -> String {
        let seconds = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        format!("{seconds:6.1} s  {name:>16}: {words}")
    }
}
