//! Neighbours talk with each other, until the player takes a seat at their table.

use bevy::prelude::*;
use bevy_walla::prelude::*;

use crate::guest::Guest;
use crate::mood::Habit;
use crate::mouth::{LineSpoken, Mouth};
use crate::player::Player;
use crate::seats::SEATS;

/// A table changes its subject after this many replies, because two agents tend to agree with each
/// other for ever.
const REPLIES_PER_SUBJECT: u32 = 4;

/// Silence before a new subject, in seconds.
const SUBJECT_PAUSE: f32 = 1.2;

/// Subjects of a table.
const SUBJECTS: [&str; 7] = [
    "Good evening! Have you heard any news?",
    "How goes the work?",
    "What do you dream of?",
    "Do you need any help?",
    "What are you afraid of?",
    "Where were you born?",
    "What do you sell these days?",
];

/// Two guests that talk with each other, or one that talks to the room.
#[derive(Component)]
struct Table {
    guests: [Entity; 2],
    /// The last line and its speaker, while it waits for an answer.
    said: Option<(Entity, String)>,
    replies: u32,
    subject: usize,
    /// Seconds of silence.
    silence: f32,
}

pub fn plugin(app: &mut App) {
    app.add_systems(PostStartup, lay)
        .add_systems(Update, (listen, talk).chain().run_if(walla_ready));
}

fn lay(mut commands: Commands, guests: Query<(Entity, &Guest)>) {
    let at =
        |seat: usize| guests.iter().find(|(_, guest)| guest.seat == seat).map(|(entity, _)| entity);
    for (number, seat) in SEATS.iter().enumerate() {
        let Some(guest) = at(number) else { continue };
        let partner = seat.partner.and_then(at);
        if partner.is_some() && seat.partner < Some(number) {
            continue; // the table exists
        }
        commands.spawn(Table {
            guests: [guest, partner.unwrap_or(guest)],
            said: None,
            replies: 0,
            subject: number,
            // Staggered, so that the tables do not all start at once.
            silence: SUBJECT_PAUSE - 0.45 * number as f32,
        });
    }
}

/// The line of one guest becomes the question to the other.
fn listen(mut spoken: MessageReader<LineSpoken>, mut tables: Query<&mut Table>) {
    for LineSpoken { guest, line, to_player } in spoken.read() {
        let table = tables.iter_mut().find(|table| table.guests.contains(guest));
        if let Some(mut table) = table.filter(|_| !to_player) {
            table.replies += 1;
            let goes_on =
                table.replies <= REPLIES_PER_SUBJECT && table.guests[0] != table.guests[1];
            table.said = goes_on.then(|| (*guest, line.clone()));
        }
    }
}

fn talk(
    time: Res<Time>,
    player: Res<Player>,
    mut tables: Query<&mut Table>,
    mut guests: Query<(&mut Mouth, &Speech)>,
    habits: Query<&Habit>,
    mut commands: Commands,
) {
    let ask_of = |guest: Entity, words: String| {
        let ask = Ask::new(guest, words);
        match habits.get(guest) {
            Ok(Habit(constraint)) => ask.with_constraint(constraint.clone()),
            Err(_) => ask,
        }
    };
    for mut table in &mut tables {
        let [left, right] = table.guests;
        if player.guest.is_some_and(|guest| table.guests.contains(&guest)) {
            table.said = None;
            table.silence = 0.0;
            continue;
        }
        if let Some((speaker, _)) = &table.said {
            let listener = if *speaker == left { right } else { left };
            if let Some((_, words)) = table.said.take() {
                commands.trigger(ask_of(listener, words));
            }
            continue;
        }
        let quiet = [left, right].into_iter().all(|guest| {
            guests.get(guest).is_ok_and(|(mouth, speech)| mouth.is_quiet() && speech.is_silent())
        });
        table.silence = if quiet { table.silence + time.delta_secs() } else { 0.0 };
        if table.silence < SUBJECT_PAUSE {
            continue;
        }
        let Some(subject) = SUBJECTS.get(table.subject % SUBJECTS.len()) else { continue };
        table.subject += 1;
        table.silence = 0.0;
        table.replies = 0;
        if left == right {
            commands.trigger(ask_of(left, (*subject).to_owned())); // called from the room
        } else if let Ok((mut mouth, _)) = guests.get_mut(left) {
            mouth.say(subject);
        }
    }
}
