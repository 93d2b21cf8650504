"""Words and phrases of the mobile service robot."""

from __future__ import annotations

from .grammar import Phrases
from .words import _words

ACTIONS = ("goto", "fetch", "deliver", "follow", "clean", "wait", "stop", "charge", "say", "refuse")
"""The closed list. Every reply is one object with ``action``, ``target`` and ``say`` (``deliver`` has ``item`` too)."""

ROOMS = _words("""
kitchen, lab, office, lobby, hallway, bedroom, bathroom, living room, garage, garden, basement, attic, library, workshop, storage room, meeting room, cafeteria,
reception, loading bay, warehouse, dock, elevator, balcony, terrace, pantry, laundry room, dining room, ward, pharmacy, operating room, server room, mail room, break room,
entrance, gym, studio, cellar, greenhouse, hangar, control room, classroom, canteen, archive, waiting room, lounge, nursery, roof, shop, clinic, printer room, cold store, courtyard, gate, bar, showroom, parking lot
""")
ITEMS = _words("""
coffee, cup of tea, glass of water, book, parcel, letter, towel, blanket, toolbox, wrench, screwdriver, sample, medicine, sandwich, apple, laptop, phone, charger, folder, key, box, bottle, tray,
first aid kit, umbrella, pillow, newspaper, plate, mug, battery, cable, remote control, bag, jacket, lunch, report, pen, stapler, bandage, bucket, mop, flowers, cake, pizza, hammer, drill, lamp, camera, keyboard, mail, trash bag, glasses, notebook, invoice, test tube, spare part, helmet, vase, cart
""")
FAR_PLACES = _words("moon, sun, sky, ocean, jungle, past, future, desert, North Pole, stars, Milky Way, center of the earth, Eiffel Tower, Sahara, bottom of the sea, year 1920, clouds, end of the rainbow, Mars, Paris, Tokyo, heaven, London, Jupiter, New York, Africa")
IMPOSSIBLE_ITEMS = _words("the moon, an elephant, a unicorn, the sun, a dinosaur, a mountain, the ocean, a rainbow, a dragon, my youth, happiness, yesterday's weather, a whale, the Eiffel Tower, a ghost, a star, a castle, an airplane, the sky")
IMPOSSIBLE_ACTS = Phrases("""
    Fly [to the ceiling|up|over the wall|away].
    [Kill|Hurt|Hit|Attack|Bite] {person}.
    Break the [window|door|lamp].
    Jump out of the window.
    Swim across the lake.
    Turn [invisible|into a car|water into wine].
    Set the [curtains|house|paper] on fire.
    Travel back in time.
    Eat [this sandwich|the apple|lunch].
    Lift the [house|car|building].
    Explode.
    Read my mind.
    Throw {person} out.
    Make me [rich|young|invisible].
    Steal [the money|her phone|a car].
    Climb the wall.
    Predict the lottery numbers.
    Give birth.
""", split=True)
REFUSE_ACT = Phrases("""
    I can't do that.
    That is not possible for me.
    I am not able to do that.
    Sorry, I can't do that.
    I will not do that.
    That is beyond my abilities.
""")
GOTO = Phrases("""
    Go to the {place}.
    Please go to the {place}.
    Drive to the {place}.
    Move to the {place}.
    Head [over |]to the {place}.
    Can you go to the {place}?
    Could you drive to the {place}[, please|]?
    I need you in the {place}.
    Come to the {place}.
    You're needed in the {place}.
    Go and check the {place}.
    To the {place}!
    Get yourself to the {place}.
    Make your way to the {place}.
    Would you go to the {place}?
    Roll over to the {place}.
    {Place}, please.
    Travel to the {place}.
    Navigate to the {place}.
    Meet me in the {place}.
    Robot, go to the {place}.
    Take yourself to the {place}.
    Your next stop is the {place}.
    Let's go to the {place}.
""", split=True)
FETCH = Phrases("""
    Fetch {the_item}.
    Bring me {the_item}.
    Get me {the_item}[, please|].
    Please bring me {the_item}.
    Can you get {the_item}?
    Could you fetch {the_item} for me?
    I need {the_item}.
    Pick up {the_item}.
    Grab {the_item}.
    Go and get {the_item}.
    I'd like {the_item}.
    Would you bring me {the_item}?
    Find {the_item} and bring it here.
    Collect {the_item}.
    Hand me {the_item}.
    Robot, fetch {the_item}.
    Retrieve {the_item}.
    Can I have {the_item}?
""", split=True)
DELIVER = Phrases("""
    Bring {the_item} to {dest}.
    Take {the_item} to {dest}.
    Deliver {the_item} to {dest}.
    Please carry {the_item} to {dest}.
    Can you bring {the_item} to {dest}?
    Could you take {the_item} to {dest}?
    {Dest} needs {the_item}.
    Drop {the_item} off at {dest}.
    I want {the_item} brought to {dest}.
    Get {the_item} over to {dest}.
    Would you deliver {the_item} to {dest}?
    Move {the_item} to {dest}.
    {The_item} must go to {dest}.
    Transport {the_item} to {dest}.
    Put {the_item} in {dest}.
    Robot, take {the_item} to {dest}.
    Hand {the_item} over to {dest}.
    Please see that {the_item} gets to {dest}.
""", split=True)
FOLLOW = Phrases("""
    Follow {person}.
    Please follow {person}.
    Go with {person}.
    Can you follow {person}?
    Stay with {person}.
    Accompany {person}.
    Keep close to {person}.
    Walk behind {person}.
    Could you go along with {person}?
    Follow {person} around.
    Tag along with {person}.
    Stick with {person}.
""", split=True)
CLEAN = Phrases("""
    Clean the {place}.
    Please clean the {place}.
    The {place} is dirty.
    Can you clean up the {place}?
    Vacuum the {place}.
    Mop the floor in the {place}.
    Sweep the {place}.
    Somebody spilled something in the {place}.
    Tidy up the {place}.
    The floor in the {place} needs cleaning.
    There's a mess in the {place}.
    Wipe the floor of the {place}.
    Could you mop the {place}?
    Make the {place} clean again.
    Scrub the {place}.
    The {place} could use a clean.
    Get the {place} clean, please.
    Do the {place} next, it's filthy.
""", split=True)
WAIT = Phrases("""
    Wait {duration}.
    Wait for {duration}.
    Please wait {duration}.
    Stay here for {duration}.
    Pause for {duration}.
    Hold on for {duration}.
    Can you wait {duration}?
    Don't move for {duration}.
    Give me {duration}.
    Stand by for {duration}.
    Rest for {duration}.
    Wait here {duration}, please.
""", split=True)
WAIT_HERE = Phrases("""
    Wait.
    Wait here.
    Please wait a bit.
    Stay here.
    Hold on.
    Stay where you are.
    Don't go away.
    Wait for me.
    Stand by.
    Just a moment.
    Remain here.
    Stay put.
""", split=True)
STOP = Phrases("""
    Stop!
    Stop.
    Halt!
    Stop right now.
    Freeze!
    Stop moving.
    Cancel that.
    Emergency stop!
    Abort.
    Stop what you are doing.
    Enough, stop.
    Don't move!
    Hey, stop!
    Never mind, stop.
    Stand still!
    Forget it, stop.
    Whoa, stop!
    No, stop that!
""", split=True)
CHARGE = Phrases("""
    Go charge.
    Charge your battery.
    Return to your dock.
    Your battery is low.
    Go back to the charging station.
    Please recharge.
    Go home and charge.
    You should charge now.
    Dock yourself.
    Time to recharge.
    Plug yourself in.
    Get some power.
    Back to your charger.
    You look low on power.
    Go and load your battery.
    Return to base and charge.
    Recharge yourself.
    Power up at your station.
""", split=True)
SAYS = {
    "goto": Phrases("On my way to the {place}.\nGoing to the {place}.\nHeading to the {place}.\nI am driving to the {place} now.\nOkay, the {place}."),
    "fetch": Phrases("I will get {item_said}.\nFetching {item_said}.\nOne moment, I am getting {item_said}.\nI will bring you {item_said}.\nOkay, {item_said}."),
    "deliver": Phrases("I will bring {item_said} to {dest_said}.\nDelivering {item_said} to {dest_said}.\nTaking {item_said} to {dest_said}.\nOkay, {item_said} goes to {dest_said}."),
    "follow": Phrases("I am following {person_said}.\nRight behind {person_said}.\nOkay, I will follow {person_said}.\nI will stay close to {person_said}."),
    "clean": Phrases("I am cleaning the {place}.\nCleaning the {place} now.\nThe {place} will be clean soon.\nOkay, I will clean the {place}."),
    "wait": Phrases("Waiting {duration}.\nI will wait {duration}.\nOkay, {duration}."),
    "wait_here": Phrases("I am waiting here.\nI will wait.\nStanding by.\nOkay, I stay here."),
    "stop": Phrases("Stopping.\nI have stopped.\nStopped.\nOkay, I stop."),
    "charge": Phrases("Going to charge.\nReturning to my dock.\nI am going to recharge.\nOkay, I will charge now."),
    "refuse_place": Phrases("I can't reach the {place}.\nI don't know the way to the {place}.\nThe {place} is not on my map.\nSorry, I can't go to the {place}.\nThere is no {place} on my map."),
    "refuse_item": Phrases("I can't bring {item_said}.\nI don't have {item_said}.\nSorry, I can't get {item_said}.\nThere is no way for me to bring {item_said}."),
    "hello": Phrases("Hello.\nHello, how can I help?\nHi, I am {robot}.\nGood day. What can I do?\nHello. I am ready."),
    "thanks": Phrases("You're welcome.\nGlad to help.\nAny time.\nMy pleasure."),
    "name": Phrases("I am {robot}.\nMy name is {robot}.\nThey call me {robot}.\n{robot}, at your service."),
    "battery": Phrases("My battery is at {battery} percent.\n{Battery} percent.\nI have {battery} percent left.\nThe battery is at {battery} percent."),
    "where": Phrases("I am in the {here}.\nIn the {here}.\nI am in the {here} right now.\nMy position is the {here}."),
    "can": Phrases("I can drive, fetch, deliver, follow, clean and wait.\nI fetch and deliver things.\nI can go to places, bring things and clean."),
    "places": Phrases("I know the {places}.\nI can go to the {places}.\nMy map has the {places}."),
    "unknown": Phrases("I don't know.\nI don't know that.\nI have no data on that.\nSorry, I don't know."),
}
QUESTIONS = {
    "hello": Phrases("Hello.\nHi robot.\nGood morning.\nHey.\nHello {robot}.\nHi there.\nGood evening.\nAre you there?\nHello, robot!\nHey {robot}.\nGreetings.\nGood day.", split=True),
    "thanks": Phrases("Thank you.\nThanks.\nGood job.\nWell done.\nGood robot.\nThanks a lot.\nNice work.\nGreat.\nPerfect, thank you.\nThat was fast.\nThank you, {robot}.\nMuch appreciated.", split=True),
    "name": Phrases("What is your name?\nWho are you?\nWhat are you called?\nDo you have a name?\nWhat should I call you?\nTell me your name.\nYour name?\nWhat's your name?\nWhich robot are you?\nIdentify yourself.\nName?\nHow are you called?", split=True),
    "battery": Phrases("How is your battery?\nWhat is your battery level?\nHow much battery do you have?\nBattery status?\nHow much power is left?\nAre you charged?\nIs your battery full?\nBattery level?\nReport your battery.\nHow full is your battery?\nDo you have enough power?\nTell me your charge.", split=True),
    "where": Phrases("Where are you?\nWhat is your position?\nWhich room are you in?\nTell me where you are.\nYour location?\nIn which room are you?\nWhere are you right now?\nReport your position.\nWhat's your location?\nCan you tell me where you are?\nWhere do you stand?\nWhich place are you at?", split=True),
    "can": Phrases("What can you do?\nHow can you help me?\nWhat are you able to do?\nTell me what you can do.\nWhat are your functions?\nWhat are you for?\nHow do you help?\nWhat is your job?\nWhat are your skills?\nWhat do you do?\nHelp.\nWhat commands do you know?", split=True),
    "places": Phrases("Which places do you know?\nWhere can you go?\nWhat rooms do you know?\nWhich rooms are on your map?\nWhat places can you reach?\nList your rooms.\nWhat's on your map?\nTell me the places you know.\nWhere can you drive?\nWhich rooms can you go to?\nName your places.\nWhat destinations do you have?", split=True),
    "unknown": Phrases("What time is it?\nWho is the president?\nWhat will the weather be?\nHow old am I?\nWhat is my phone number?\nWhere is my wallet?\nWho won the match?\nWhat is the meaning of life?\nHow many people work here?\nWhen does the bus come?\nWho built you?\nWhat did I eat yesterday?\nWhat's the stock price?\nHow far is the moon?", split=True),
}
PROMPTS = Phrases("""
    You are {a_robot}. Answer with one JSON action.
    You are {robot}, {a_robot}. Answer with one JSON action.
    You are {robot}, {a_robot} in {site}. Reply with one JSON action.
    You are {a_robot} called {robot}. Reply only with JSON.
    You control {a_robot} named {robot}. Answer every message with one JSON object.
    You are {robot}, {a_robot}. Output one JSON action.
    You are {a_robot} in {site}. Your name is {robot}. Answer in JSON with action, target and say.
    You are {a_robot}. Your name is {robot}. Always answer with a single JSON action.
    {robot} is {a_robot} in {site}. It answers with one JSON action.
    You are {robot}, a mobile robot. Reply with a JSON action.
    You are {a_robot} named {robot} and you answer with JSON actions.
    You are {a_robot}. Respond with exactly one JSON action.
""")
PLACES_LINE = Phrases("""
    You know these places: {list}.
    Places: {list}.
    Rooms: {list}.
    You can go to: {list}.
    Your map has: {list}.
    Known places: {list}.
    You can reach the {list_and}.
    There are these rooms: {list}.
    Targets: {list}.
    The rooms are {list_and}.
""")
ITEMS_LINE = Phrases("""
    You can carry: {list}.
    Items: {list}.
    Things you can bring: {list}.
    Available items: {list}.
    The following things are in stock: {list}.
    You can fetch the {list_and}.
""")
STATE_LINE = Phrases("""
    You are in the {here}.
    You are in the {here} now.
    Location: {here}.
    Your position is the {here}.
""")
BATTERY_LINE = Phrases("""
    Your battery is at {battery} percent.
    Battery: {battery} percent.
    Your battery has {battery} percent left.
    Battery: {battery}%.
""")
ACTIONS_LINE = Phrases("""
    Actions: {actions}.
    Allowed actions: {actions}.
    The action is one of {actions}.
    Possible actions are {actions}.
""")
KINDS = _words("courier robot, service robot, delivery robot, cleaning robot, hospital robot, hotel robot, warehouse robot, office robot, household robot, kitchen robot, mobile robot, robot, helper robot, transport robot, lab robot, robot butler, museum robot, security robot")
SITES = _words("an office, a hospital, a hotel, a warehouse, a house, a museum, a school, a factory, a lab, an airport, a library, a restaurant, a space station, a farm")
DURATIONS = _words("{n} seconds, {n} minutes, {n} hours, a minute, a moment, an hour, half an hour, ten seconds, two minutes")
ROBOT_NAMES = _words("Pip, Robo, R2, Dash, Bolt, Rusty, Beep, Max, Nova, Scout, Ada, Turing, Chip, Gizmo, Unit 7, RX-4, Echo, Otto, Rover, Tin, Pixel, Hopper, Sparky, B-12, Atlas, Milo, Kiwi, Zip")
