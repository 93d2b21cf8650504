//! Voices of guests: with `--voice`, lines are spoken, lips follow the shapes of the mouth, and
//! words are shown when they are heard.

use std::path::PathBuf;

use bevy::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::voice::{Interrupt, MouthShape, Voice, WallaVoicePlugin, Word};

use crate::guest::Guest;
use crate::mouth::Mouth;

/// Speaks with this voice; without one, nothing is spoken.
pub struct VoicesPlugin {
    pub file: Option<PathBuf>,
}

impl Plugin for VoicesPlugin {
    fn build(&self, app: &mut App) {
        let Some(file) = &self.file else { return };
        let file = file.to_string_lossy().into_owned();
        app.add_plugins(WallaVoicePlugin::default()).add_observer(hear).add_systems(
            Update,
            move |guests: Query<(Entity, &Guest), Added<Guest>>, mut commands: Commands| {
                for (entity, guest) in &guests {
                    // One voice for all of them: some speak faster than others.
                    let speed = 0.9 + 0.04 * (guest.seat % 6) as f32;
                    commands.entity(entity).insert(Voice::file(file.clone()).with_speed(speed));
                }
            },
        );
        #[cfg(feature = "sound")]
        app.add_plugins(bevy_walla::voice::WallaVoicePlaybackPlugin);
    }
}

fn hear(word: On<Word>, mut mouths: Query<&mut Mouth>) {
    if let Ok(mut mouth) = mouths.get_mut(word.agent) {
        mouth.hear(word.text());
    }
}

/// The player interrupts a guest: with a voice, the guest remembers what was heard.
pub fn interrupt(commands: &mut Commands, guest: Entity, has_voice: bool) {
    if has_voice {
        commands.trigger(Interrupt { agent: guest });
    } else {
        commands.cancel(guest);
    }
}

/// How far lips are open, and how wide.
pub fn lips(shape: MouthShape) -> (f32, f32) {
    use MouthShape::*;
    match shape {
        Silence => (0.38, 1.0),
        Pp => (0.15, 0.95),
        Ff | Th => (0.4, 1.0),
        Dd | Kk | Nn | Rr => (0.75, 0.95),
        Ch => (0.65, 0.7),
        Ss => (0.5, 1.15),
        Aa => (1.7, 1.0),
        E => (1.1, 1.15),
        I => (0.8, 1.25),
        O => (1.4, 0.7),
        U => (0.9, 0.5),
    }
}
