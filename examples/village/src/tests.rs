use super::*;

/// With the demo model: all are there, the addressed one answers, and the player's last
/// line ends the program.
#[test]
fn an_evening_at_the_well() {
    #[derive(Resource, Default)]
    struct Heard(Vec<(String, String)>);
    let lines = [
        "Good evening!",
        "Hesper, where were you born?",
        "Greta, what does a sword cost?",
        "Greta, what does a lantern cost?",
        "Greta, who is the thief?",
        "Voss, who is the thief?",
    ];
    let lines = lines.map(String::from);
    let player = Player {
        name: "Alice".into(),
        lines: lines.into(),
        input: None,
        interrupts: false,
        is_silent: true,
        has_failed: false,
    };
    let mut app = village(WallaPlugin::default(), Well::of_demo_model(), player);
    app.init_resource::<Heard>().add_observer(|line: On<GroupLine>, mut heard: ResMut<Heard>| {
        heard.0.push((line.name.to_string(), line.text.clone()));
    });
    app.add_systems(Last, |heard: Res<Heard>, mut ends: MessageReader<AppExit>| {
        if ends.read().next().is_some() {
            let names: Vec<_> = heard.0.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((names[0], names[1]), ("Alice", "Greta"), "{:?}", heard.0);
            let answers = |question: &str| {
                let asked = heard.0.iter().position(|(_, line)| line == question);
                heard.0[asked.unwrap() + 1].clone()
            };
            for (name, question, word) in [
                ("Hesper", "Hesper, where were you born?", "Dunmere"),
                ("Greta", "Greta, what does a sword cost?", "40 silver"),
                // From the lore: the second one is for guards alone.
                ("Greta", "Greta, what does a lantern cost?", "7 silver"),
                ("Voss", "Voss, who is the thief?", "Bertram"),
            ] {
                let (speaker, answer) = answers(question);
                assert!(speaker == name && answer.contains(word), "{:?}", heard.0);
            }
            assert!(!answers("Greta, who is the thief?").1.contains("Bertram"));
        }
    });
    assert_eq!(app.run(), AppExit::Success);
}
