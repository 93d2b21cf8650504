//! Moods of guests: their cues, which are not spoken. A smile widens the lips, a frown shows the
//! brows, and the plate of the guest names both.

use bevy::prelude::*;
use bevy_walla::agent::Constraint;
use bevy_walla::cues::{AgentCues, Cues, ReplyCue};

/// Time that a mood stays visible.
const MOOD_SECONDS: f32 = 6.0;

/// Cues that a guest may write, and how its plate names them.
const SMILE: (&str, &str) = ("smile", "smiles");
const FROWN: (&str, &str) = ("frown", "frowns");

/// The mood of a guest.
#[derive(Component, Default)]
pub struct Mood {
    cue: Option<&'static str>,
    seconds: f32,
}

/// The cue with which a guest begins its lines at the table with the demo model, which does not
/// know stage directions.
#[derive(Component)]
pub struct Habit(pub Constraint);

/// Brows of a guest, visible while it frowns.
#[derive(Component)]
pub struct Brow;

/// The plate with the name of a guest.
#[derive(Component)]
pub struct Plate(pub &'static str);

pub fn plugin(app: &mut App) {
    app.add_observer(feel).add_systems(Update, (fade, show).chain());
}

/// The cues of a guest.
pub fn cues() -> AgentCues {
    let cues = Cues::new().with_cue(SMILE.0, [SMILE.1, "grins", "laughs", "nods"]);
    AgentCues(cues.with_cue(FROWN.0, [FROWN.1, "sighs", "scowls"]))
}

/// A guest with this persona begins its lines with a smile, or with a frown.
pub fn habit(persona: &str) -> Habit {
    let frowns = ["suspicious", "tired", "afraid"].iter().any(|word| persona.contains(word));
    let (_, word) = if frowns { FROWN } else { SMILE };
    Habit(Constraint::regex(format!(r"\*{word}\* [^*]*")))
}

fn feel(cue: On<ReplyCue>, mut moods: Query<&mut Mood>) {
    let known = [SMILE, FROWN].into_iter().find(|(name, _)| *name == cue.name.as_str());
    if let Ok(mut mood) = moods.get_mut(cue.agent)
        && let Some((_, word)) = known
    {
        *mood = Mood { cue: Some(word), seconds: MOOD_SECONDS };
    }
}

fn fade(time: Res<Time>, mut moods: Query<&mut Mood>) {
    for mut mood in moods.iter_mut().filter(|mood| mood.cue.is_some()) {
        mood.seconds -= time.delta_secs();
        if mood.seconds <= 0.0 {
            mood.cue = None;
        }
    }
}

fn show(
    moods: Query<(Entity, &Mood), Changed<Mood>>,
    children: Query<&Children>,
    mut brows: Query<&mut Visibility, With<Brow>>,
    mut plates: Query<(&Plate, &mut Text2d)>,
) {
    for (guest, mood) in &moods {
        for part in children.iter_descendants(guest) {
            if let Ok(mut visibility) = brows.get_mut(part) {
                let is_shown = mood.cue == Some(FROWN.1);
                visibility.set_if_neq(if is_shown {
                    Visibility::Inherited
                } else {
                    Visibility::Hidden
                });
            }
            if let Ok((Plate(name), mut text)) = plates.get_mut(part) {
                let shown =
                    mood.cue.map_or_else(|| (*name).to_owned(), |cue| format!("{name} {cue}"));
                if text.0 != shown {
                    text.0 = shown;
                }
            }
        }
    }
}

impl Mood {
    /// Width of the lips.
    pub fn lips(&self) -> f32 {
        match self.cue {
            Some(cue) if cue == SMILE.1 => 2.1,
            Some(_) => 0.8,
            None => 1.0,
        }
    }
}
