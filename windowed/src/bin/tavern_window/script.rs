//! Scripted input: clicks, keys and pictures from a list of steps, for tests and screenshots.
//!
//! Clicks and keys are injected as the window's events, so a script can do exactly what a player
//! can.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bevy::app::AppExit;
use bevy::camera::NormalizedRenderTarget;
use bevy::input::ButtonState;
use bevy::input::keyboard::{Key, KeyboardInput};
use bevy::picking::pointer::{Location, PointerAction, PointerButton, PointerId, PointerInput};
use bevy::prelude::*;
use bevy::render::view::screenshot::{Screenshot, ScreenshotCaptured};
use bevy::window::{PrimaryWindow, WindowRef};
use bevy_walla::prelude::*;
use serde_json::json;
use walla_examples::fail;

use crate::guest::Guest;
use crate::mouth::LineSpoken;
use crate::player::{Player, Say};
use crate::purse::{Flight, Purse};
use crate::wares::Sale;

/// One step; the next follows in the next frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Waits for the model.
    Ready,
    /// Waits for this number of frames.
    Wait(u32),
    /// Moves the pointer to a guest.
    Point(String),
    /// Presses or releases the mouse button at the pointer.
    Button(ButtonState),
    /// Presses and releases a key.
    Press(KeyCode, Key),
    /// Types a text.
    Type(String),
    /// Waits until an item is on its way from a guest to the player.
    Sale,
    /// Waits until the whole answer to the player is shown.
    Reply,
    /// Saves a screenshot.
    Screenshot(PathBuf),
    /// Ends the program.
    Quit,
}

/// Steps, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script(VecDeque<Step>);

impl FromIterator<Step> for Script {
    fn from_iter<T: IntoIterator<Item = Step>>(steps: T) -> Self {
        Self(steps.into_iter().collect())
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut steps = Self::default();
        for step in text.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            steps.0.extend(parse(step)?);
        }
        Ok(steps)
    }
}

fn parse(step: &str) -> Result<Vec<Step>, String> {
    let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
    let rest = rest.trim();
    Ok(match (verb, rest) {
        ("ready", "") => vec![Step::Ready],
        ("wait", frames) => {
            vec![Step::Wait(frames.parse().map_err(|_| format!("{step:?}: how many frames?"))?)]
        }
        ("click", name) if !name.is_empty() => vec![
            Step::Point(name.to_owned()),
            Step::Button(ButtonState::Pressed),
            Step::Button(ButtonState::Released),
        ],
        ("press", key) => vec![press(key)?],
        ("type", text) if !text.is_empty() => vec![Step::Type(text.to_owned())],
        ("sale", "") => vec![Step::Sale],
        ("reply", "") => vec![Step::Reply],
        ("screenshot", path) if !path.is_empty() => vec![Step::Screenshot(path.into())],
        ("quit", "") => vec![Step::Quit],
        _ => return Err(format!("{step:?} is no step")),
    })
}

fn press(key: &str) -> Result<Step, String> {
    let (code, key) = match key {
        "1" => (KeyCode::Digit1, Key::Character("1".into())),
        "2" => (KeyCode::Digit2, Key::Character("2".into())),
        "3" => (KeyCode::Digit3, Key::Character("3".into())),
        "4" => (KeyCode::Digit4, Key::Character("4".into())),
        "enter" => (KeyCode::Enter, Key::Enter),
        "escape" => (KeyCode::Escape, Key::Escape),
        "f3" => (KeyCode::F3, Key::F3),
        other => return Err(format!("key {other:?}: expected 1 to 4, enter, escape or f3")),
    };
    Ok(Step::Press(code, key))
}

/// Plays a script, and records the dialogue.
pub struct ScriptPlugin {
    pub script: Option<Script>,
    pub transcript: Option<PathBuf>,
}

#[derive(Resource)]
struct Stage {
    steps: VecDeque<Step>,
    waited: u32,
    pictures_due: u32,
    pointer: Vec2,
}

#[derive(Resource)]
struct Transcript(File);

impl Plugin for ScriptPlugin {
    fn build(&self, app: &mut App) {
        if let Some(Script(steps)) = self.script.clone() {
            let pointer = Vec2::ZERO;
            app.insert_resource(Stage { steps, waited: 0, pictures_due: 0, pointer })
                .add_systems(First, play.before(bevy::ecs::message::MessageUpdateSystems));
        }
        if let Some(path) = &self.transcript {
            let file = File::create(path)
                .unwrap_or_else(|error| fail(format!("{}: {error}", path.display())));
            app.insert_resource(Transcript(file)).add_systems(PostUpdate, write_down);
        }
        app.add_systems(Update, give_up.run_if(resource_exists::<Stage>));
    }
}

/// Outputs for clicks and keys.
#[derive(bevy::ecs::system::SystemParam)]
struct Hands<'w, 's> {
    keys: MessageWriter<'w, KeyboardInput>,
    pointer: MessageWriter<'w, PointerInput>,
    exit: MessageWriter<'w, AppExit>,
    commands: Commands<'w, 's>,
}

fn play(
    mut stage: ResMut<Stage>,
    walla: Res<Walla>,
    player: Res<Player>,
    window: Single<Entity, With<PrimaryWindow>>,
    camera: Single<(&Camera, &GlobalTransform), With<IsDefaultUiCamera>>,
    guests: Query<(&Guest, &GlobalTransform)>,
    flights: Query<(), With<Flight>>,
    mut hands: Hands,
) {
    let Some(step) = stage.steps.front().cloned() else { return };
    let done = match step {
        Step::Ready => walla.is_ready(),
        Step::Wait(frames) => {
            stage.waited += 1;
            stage.waited > frames
        }
        Step::Point(name) => {
            let feet = guests.iter().find(|(guest, _)| guest.persona.name == name);
            let Some((_, feet)) = feet else { fail(format!("nobody is called {name:?}")) };
            let chest = feet.translation() + Vec3::Y * 40.0;
            let (camera, eye) = *camera;
            if let Ok(at) = camera.world_to_viewport(eye, chest) {
                let delta = at - stage.pointer;
                stage.pointer = at;
                hands.point(*window, at, PointerAction::Move { delta });
            }
            true
        }
        Step::Button(state) => {
            let action = match state {
                ButtonState::Pressed => PointerAction::Press(PointerButton::Primary),
                ButtonState::Released => PointerAction::Release(PointerButton::Primary),
            };
            hands.point(*window, stage.pointer, action);
            true
        }
        Step::Press(code, key) => {
            hands.key(*window, code, key);
            true
        }
        Step::Type(text) => {
            for letter in text.chars() {
                hands.key(
                    *window,
                    KeyCode::Unidentified(bevy::input::keyboard::NativeKeyCode::Unidentified),
                    Key::Character(letter.to_string().into()),
                );
            }
            true
        }
        Step::Sale => !flights.is_empty(),
        Step::Reply => !player.waits,
        Step::Screenshot(path) => {
            stage.pictures_due += 1;
            hands.picture(path);
            true
        }
        Step::Quit => {
            let seen = stage.pictures_due == 0;
            if seen {
                hands.exit.write(AppExit::Success);
            }
            seen
        }
    };
    if done {
        stage.steps.pop_front();
        stage.waited = 0;
    }
}

impl Hands<'_, '_> {
    fn point(&mut self, window: Entity, position: Vec2, action: PointerAction) {
        let Some(target) = WindowRef::Entity(window).normalize(None) else { return };
        let location = Location { target: NormalizedRenderTarget::Window(target), position };
        self.pointer.write(PointerInput::new(PointerId::Mouse, location, action));
    }

    fn key(&mut self, window: Entity, key_code: KeyCode, logical_key: Key) {
        let text = match &logical_key {
            Key::Character(text) => Some(text.clone()),
            _ => None,
        };
        for state in [ButtonState::Pressed, ButtonState::Released] {
            self.keys.write(KeyboardInput {
                key_code,
                logical_key: logical_key.clone(),
                state,
                text: text.clone().filter(|_| state == ButtonState::Pressed),
                repeat: false,
                window,
            });
        }
    }

    fn picture(&mut self, path: PathBuf) {
        self.commands.spawn(Screenshot::primary_window()).observe(
            move |captured: On<ScreenshotCaptured>, mut stage: ResMut<Stage>| {
                save(&captured.image, &path);
                stage.pictures_due -= 1;
            },
        );
    }
}

fn save(image: &Image, path: &Path) {
    let picture = match image.clone().try_into_dynamic() {
        Ok(picture) => picture.into_rgb8(),
        Err(error) => fail(format!("{}: {error}", path.display())),
    };
    if let Err(error) = picture.save(path) {
        fail(format!("{}: {error}", path.display()));
    }
}

/// Fails if the model does, since the script would wait for ever.
fn give_up(walla: Res<Walla>) {
    if let WallaState::Failed(error) = walla.state() {
        fail(error);
    }
}

/// Writes one JSON object per line: a line with its speaker and whether it was addressed to the
/// player, or a sale with the silver that the player has left.
fn write_down(
    mut transcript: ResMut<Transcript>,
    mut said: MessageReader<Say>,
    mut spoken: MessageReader<LineSpoken>,
    mut sales: MessageReader<Sale>,
    purse: Res<Purse>,
    guests: Query<&Guest>,
) {
    let name = |guest: Entity| guests.get(guest).map_or("?", |guest| guest.persona.name);
    let questions = said.read().map(|Say(text)| ("You", text, false));
    let answers = spoken.read().map(|line| (name(line.guest), &line.line, line.to_player));
    let lines = questions
        .chain(answers)
        .map(|(who, text, to_player)| json!({ "who": who, "text": text, "to_player": to_player }));
    let sales = sales.read().map(|Sale { guest, ware, paid }| {
        json!({ "who": name(*guest), "sells": ware.name, "paid": paid, "silver": purse.silver() })
    });
    for line in lines.chain(sales) {
        if let Err(error) = writeln!(transcript.0, "{line}") {
            fail(format!("the transcript cannot be written: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read() {
        let script: Script =
            "ready; click Greta; press 1; type Hello there; wait 12; sale; reply; quit;"
                .parse()
                .unwrap();
        let button = Step::Button;
        let expected = Script::from_iter([
            Step::Ready,
            Step::Point("Greta".to_owned()),
            button(ButtonState::Pressed),
            button(ButtonState::Released),
            Step::Press(KeyCode::Digit1, Key::Character("1".into())),
            Step::Type("Hello there".to_owned()),
            Step::Wait(12),
            Step::Sale,
            Step::Reply,
            Step::Quit,
        ]);
        assert_eq!(script, expected);
    }

    #[test]
    fn wrong_steps_are_named() {
        for (script, named) in [("jump", "jump"), ("wait long", "wait long"), ("press x", "\"x\"")]
        {
            let error = Script::from_str(script).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
