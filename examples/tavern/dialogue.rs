//! Who talks with whom.

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::FinishReason;
use bevy_walla::prelude::*;
use walla_examples::{name, persona};

use crate::Arguments;
use crate::printer::Line;

/// After so many replies a table takes up another subject, because two agents tend to agree with each other for ever.
const REPLIES_PER_SUBJECT: u32 = 6;

/// The visitor goes to another guest this often.
const VISIT_EVERY: Duration = Duration::from_secs(4);

/// Seats the guests and lets them talk.
pub struct DialoguePlugin {
    agents: usize,
    reply_tokens: u32,
}

/// A guest, by place.
#[derive(Component)]
struct Guest {
    place: usize,
    /// Replies since the last change of subject.
    replies: u32,
}

/// Who sits at the same table.
#[derive(Component)]
struct Neighbour(Entity);

/// When the doors opened, and whom the visitor has seen.
#[derive(Resource, Default)]
struct Evening {
    began: Option<Instant>,
    visits: u32,
}

impl DialoguePlugin {
    pub fn new(arguments: &Arguments) -> Self {
        Self { agents: arguments.agents, reply_tokens: arguments.reply_tokens }
    }
}

impl Plugin for DialoguePlugin {
    fn build(&self, app: &mut App) {
        let Self { agents, reply_tokens } = *self;
        app.init_resource::<Evening>()
            .add_systems(Startup, move |commands: Commands| seat(commands, agents, reply_tokens))
            .add_systems(Update, visit.run_if(walla_ready))
            .add_observer(open)
            .add_observer(print_sentence)
            .add_observer(pass_on);
    }
}

/// Two at each table; who is left over waits for the visitor.
fn seat(mut commands: Commands, agents: usize, reply_tokens: u32) {
    let guests: Vec<Entity> =
        (0..agents).map(|place| spawn(&mut commands, place, reply_tokens)).collect();
    for table in guests.chunks_exact(2) {
        if let [left, right] = *table {
            commands.entity(left).insert(Neighbour(right));
            commands.entity(right).insert(Neighbour(left));
        }
    }
}

fn spawn(commands: &mut Commands, place: usize, reply_tokens: u32) -> Entity {
    let name = name(place);
    let house_rules = "You sit in the tavern. Answer in one or two sentences, in your own voice, without quotation marks.";
    commands
        .spawn((
            Guest { place, replies: 0 },
            Agent::persona(format!("{} {house_rules}", persona(place).text)),
            AgentSeed::from_name(&name),
            ReplyLimits::tokens(reply_tokens).stop_at("\n"),
            VoiceRate::tokens_per_second(6.0),
            Name::new(name),
        ))
        .id()
}

/// When the model is loaded, one guest of each table opens the talk.
fn open(
    _: On<WallaReady>,
    guests: Query<(&Guest, &Name, &Neighbour)>,
    mut evening: ResMut<Evening>,
    mut commands: Commands,
) {
    evening.began = Some(Instant::now());
    for (guest, name, neighbour) in guests.iter().filter(|(guest, ..)| guest.place % 2 == 0) {
        commands.ask(neighbour.0, said(name, persona(guest.place).opening));
    }
}

/// What one guest said goes to the other.
fn pass_on(
    finished: On<ReplyFinished>,
    mut guests: Query<(&mut Guest, &Name, &Neighbour, &Speech)>,
    mut commands: Commands,
) {
    let Ok((mut guest, name, neighbour, speech)) = guests.get_mut(finished.agent) else { return };
    if finished.reason == FinishReason::Cancelled {
        return;
    }
    guest.replies += 1;
    let words = speech.text().trim();
    let new_subject = words.is_empty() || guest.replies % REPLIES_PER_SUBJECT == 0;
    let words = if new_subject { persona(guest.place).opening } else { words };
    commands.ask(neighbour.0, said(name, words));
}

fn said(name: &Name, words: &str) -> String {
    format!("{name} says to you: {words}")
}

/// Every few seconds the visitor asks the next guest, who answers when the talk at the table leaves room.
fn visit(
    guests: Query<(Entity, &Guest)>,
    mut evening: ResMut<Evening>,
    line: Res<Line>,
    mut commands: Commands,
) {
    let Some(began) = evening.began else { return };
    if began.elapsed() < VISIT_EVERY * (evening.visits + 1) {
        return;
    }
    let count = guests.iter().len().max(1);
    let place = evening.visits as usize * 5 % count; // 5 and 12 have no common divisor: everybody's turn comes
    evening.visits += 1;
    if let Some((agent, guest)) = guests.iter().find(|(_, guest)| guest.place == place) {
        let question = persona(guest.place).question;
        line.print(stamped(began, "Visitor", &format!("({}?) {question}", name(place))));
        commands.ask(agent, format!("A visitor asks you: {question}"));
    }
}

fn print_sentence(
    sentence: On<SentenceSpoken>,
    names: Query<&Name>,
    evening: Res<Evening>,
    line: Res<Line>,
) {
    let (Ok(name), Some(began)) = (names.get(sentence.agent), evening.began) else { return };
    line.print(stamped(began, name, &sentence.text));
}

fn stamped(began: Instant, name: &str, words: &str) -> String {
    format!("{:6.1} s  {name:>16}: {words}", began.elapsed().as_secs_f64())
}
