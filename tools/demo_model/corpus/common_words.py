"""About a thousand common English words that the other lists lack, so that copying a word does not need to know it."""

from __future__ import annotations

from . import robot_words, words
from .grammar import is_held_out
from .words import _words

_NOUNS = _words("""
acid, acorn, acre, actor, address, adult, adventure, advice, album, alarm, alley, almond, alphabet, altar, ambulance, angel, angle, ankle, ant, anthem, appetite, apricot, aquarium, arch, arena, arm, armchair, army, arrest, artist, ashtray,
aspirin, atlas, atom, author, autumn, avenue, award, baby, backpack, bacon, badge, badger, bagel, balloon, ballot, bamboo, banana, banner, banquet, barge, bark, barrier, baton, beach, beak, beam, beard, beauty, beaver, bedside, beetle,
beggar, belly, beret, bible, bill, billboard, binoculars, biscuit, bison, blackboard, bladder, blade, blood, bloom, blossom, blouse, blueprint, bonnet, booklet, border, bouquet, bow, boy, brain, brake, brandy, brass, bread, breath, breeze, bribe,
bride, briefcase, broccoli, bronze, broth, bruise, bubble, buffalo, bug, bugle, bull, bullet, bumper, bundle, burger, bus, bush, business, butterfly, cabin, cactus, calendar, calf, camel, camp, canal, canary, cancer, candy, cannonball, canvas,
canyon, captive, car, caravan, carbon, card, cardboard, cargo, carnival, cartridge, casino, castle, caterpillar, cattle, cauliflower, ceiling, celery, cement, century, cereal, certificate, chamber, champagne, chapter, chariot, charity, chart,
cheek, cheetah, chemical, cheque, cherry, chess, chestnut, chicken, chief, chilli, chin, china, chip, chocolate, choir, church, cigar, cinema, circle, circus, city, clarinet, class, classroom, clay, cliff, climate, cloud, clover, club, clue,
coach, coast, cobra, cobweb, cocoa, coconut, coffin, colony, colour, column, comedy, comet, comic, concert, cone, contract, copper, coral, corner, corpse, costume, cottage, cotton, cougar, council, counter, country, couple, court, cousin, cow,
coyote, crab, cracker, crane, crater, cream, cricket, crime, crocodile, crop, cross, crossing, crowd, crumb, crust, cube, cucumber, cupboard, curry, curve, custard, cycle, cylinder, dagger, daisy, dairy, dam, damage, dancer, danger,
darkness, dart, daughter, dawn, deer, demon, den, dentist, deputy, desert, dessert, detective, device, devil, diamond, diary, dictionary, dinner, diploma, dirt, disaster, ditch, dock, doctor, document, dollar, dolphin, donut, dough, dove,
dozen, draft, dragonfly, drama, drawer, dream, drill, driver, drop, duck, dune, dungeon, dwarf, ear, earring, earth, echo, eclipse, editor, eel, effort, elbow, election, elf, embassy, ember, empire, enemy, energy, eraser, escalator, essay,
estate, evening, evidence, exam, exit, expert, eye, fabric, factory, fairy, falcon, fame, family, famine, farm, farmer, father, fault, feather, feast, fern, festival, fever, fiction, fig, finger, fire, fireplace, firework, fist, flame, flamingo,
flash, fleet, flesh, flight, flood, floor, flour, flower, fluid, fly, fog, foot, football, forehead, forest, fortress, fortune, foundation, fox, freezer, freight, fridge, friend, front, frost, fruit, fuel, funeral, furnace, furniture, future,
gadget, galaxy, gallery, gallon, gamble, game, garage, garlic, garment, gas, gazelle, geyser, giant, ginger, giraffe, girl, glacier, glass, globe, glory, gorilla, gown, grammar, granite, grass, gravel, gravy, grease, grid, grill, grocery,
guard, guess, guest, guide, guild, gum, gun, gutter, gypsum, habit, hail, hair, haircut, hall, hamster, hand, handbag, handbook, harbour, hare, harvest, hawk, haystack, hazel, headline, heart, hearth, heater, hedge, hedgehog, heel, helicopter,
heron, hill, hippo, hobby, hockey, hole, holiday, home, homework, honey, hood, hoof, horizon, horn, hospital, host, hostel, hotel, hour, house, hunger, hurricane, husband, hut, hyacinth, ice, iceberg, icicle, idea, idol, igloo, image, impulse,
inch, income, index, infant, ink, insect, island, ivory, ivy, jaguar, jail, jam, javelin, jaw, jelly, jester, jet, jockey, joke, journal, journey, joy, judge, juice, jungle, jury, justice, kangaroo, kennel, kernel, ketchup, keyhole, kidney,
kilt, king, kingdom, kiosk, kiss, kitten, knee, knight, knuckle, koala, label, labyrinth, lace, lady, lagoon, lake, lamb, language, lap, lark, laser, laundry, laurel, lava, lawn, lawyer, leader, leaf, lecture, leg, legend, lemonade, leopard,
lesson, lettuce, licence, lighter, lightning, lily, limb, lime, limestone, linen, lipstick, liquid, litter, lizard, llama, loaf, lobster, locker, locket, locomotive, lodge, loft, logic, lollipop, lorry, lotion, lottery, lotus, luggage, lunchbox, lung,
lynx, macaroni, machine, magazine, maggot, maiden, mammal, manager, mango, mansion, manual, manuscript, marathon, margin, marigold, marina, mascot, master, match, matchbox, maze, meadow, meal, meat, mechanic, medallion, melody, member, menu, mercury, message,
metal, meteor, microphone, microscope, midnight, mile, mill, mind, mint, minute, miracle, missile, mist, mistake, mixture, moat, mole, moment, monkey, monster, month, monument, moose, morning, mosaic, mosque, mosquito, moss, motel, mother, motorbike,
mountain, mouse, mouth, movie, mud, muffin, mulberry, mummy, muscle, museum, mustard, mystery, nation, nature, neck, necktie, needlework, neighbour, nephew, nerve, nest, nettle, newt, nickel, niece, night, nightgown, noodle, noon, nose,
note, novel, nugget, number, nurse, nutmeg, nylon, oak, oasis, oat, oatmeal, object, observatory, ocean, octopus, offer, officer, olive, omelette, opal, opera, operator, opinion, orchard, orchestra, orchid, order, organ, ornament, ostrich, otter, outfit, outlaw,
oval, owner, ox, oxygen, oyster, package, paddle, page, pail, painter, pair, palace, palm, pancake, panda, panel, panther, pants, paprika, parachute, parade, parchment, parent, park, parrot, parsley, partner, party, passage, passenger, pasta, paste, pastry, patch,
path, patient, pattern, pavement, paw, pea, peak, peanut, peasant, pedestal, pelican, penguin, peninsula, people, petal, petrol, pheasant, photo, phrase, picnic, picture, pigeon, pilgrim, pill, pilot, pine, pineapple, pirate, pistachio, pit, pitcher, pizza,
plain, planet, plant, plaster, plastic, plateau, platform, player, plaza, plough, plumber, plumage, poet, poison, police, polish, pond, pool, poppy, porcelain, porch, port, portrait, postcard, poster, potion, powder, power, prayer, prescription, present, president, priest,
prince, princess, prison, prize, problem, profit, promise, proof, protest, puddle, pudding, puma, pumpkin, pupil, puppet, puppy, pyramid, python, quail, quarrel, quarry, quarter, quartz, queen, question, quiver, quiz, rabbit, raccoon, racket, radar, radiator, rag, raid, rail,
railway, rain, rainbow, raincoat, raisin, ramp, ranch, rash, raspberry, raven, ray, record, recipe, refrigerator, region, reindeer, relic, rhubarb, rhyme, rib, rice, riddle, rider, ridge, ring, riot, river, road, rock, rodeo, roller, root, rose, rosemary, rubbish, rudder, rug, rumour, runner,
rust, safari, saffron, sailor, saint, salmon, salon, sand, sandstone, sapling, sapphire, sardine, satellite, satin, sauce, sauna, sausage, savings, saxophone, scar, scarecrow, scene, scent, scholar, school, science, scooter, scorpion, scout, screen, script, scroll, sculpture, sea, seafood, seagull, seal,
season, seat, seaweed, secret, secretary, seed, seesaw, servant, sesame, shack, shade, shadow, shampoo, shape, shark, shed, sheep, shelter, sheriff, shin, shirt, shoe, shop, shore, shorts, shoulder, shower, shrimp, shrine, shrub, shutter, sickle, signal, silence, silk, singer, sink, siren,
skate, skeleton, ski, skull, skunk, sky, skyscraper, sledge, slide, slope, sloth, smoke, snack, snail, snake, sneaker, snow, snowball, snowman, soda, soil, soldier, song, soul, soup, south, spaceship, spark, sparrow, speaker, spear, speech, sphere, spice, spinach, spine, spirit,
splinter, spoke, spray, spy, square, squid, squirrel, stable, stadium, staff, stage, stain, staircase, stall, stallion, star, starfish, station, steam, steel, stem, step, stew, stomach, stool, storage, store, stork, storm, story, stranger, straw, strawberry, stream, street, student,
studio, subject, suburb, subway, sugar, suit, sulphur, summer, summit, sun, sunflower, sunglasses, sunset, supper, surgeon, surprise, swamp, swan, sweat, sweet, swing, symbol, syrup, system, tail, tailor, tale, tambourine, tangerine, tank, tar, target, tavern, tax, taxi, teacher, team, tear, teapot, teaspoon,
telegram, telephone, television, temple, tennis, terminal, terrier, territory, theatre, theory, thief, thigh, thorn, throat, throne, thumb, thunder, tide, tiger, tights, timetable, tin, tinsel, toad, toast, tobacco, toe, toilet, tomb, tongue, tooth, toothbrush, toothpaste, topaz, tornado, tortoise, tourist, tournament,
tower, town, track, tractor, traffic, tragedy, trail, train, traitor, tram, trap, trapdoor, treasure, treaty, tree, trench, trial, triangle, tribe, trick, trolley, trombone, trophy, trousers, truck, truffle, truth, tulip, tuna, tunnel, turban, turbine, turkey, turquoise, turtle, tusk, twin, typewriter, tyre, ukulele,
uncle, unicorn, uniform, university, urn, vaccine, valley, van, vanilla, vapour, varnish, vault, vegetable, vehicle, velvet, vendor, verdict, verse, vessel, victim, victory, video, village, villain, vine, vinegar, viola, viper, visitor, vitamin, voice, volcano, volleyball, vote, voyage, vulture, waffle, waist, waiter,
wall, wallpaper, walrus, war, warrior, washer, wasp, water, waterfall, watermelon, wave, weapon, weasel, weather, web, wedding, weed, week, whale, wharf, wheelbarrow, wheelchair, whisker, wife, willow, wind, window, winner, winter, wish, witness, wolf, woman, wood, woodpecker, workbench, world, worm, wound,
wreath, wreck, wrist, writer, xylophone, yacht, yard, yeast, yoghurt, youth, zebra, zinc, zipper, zoo, accordion, anvil, bagpipe, ballroom, barbecue, bathtub, beehive, birdcage, bookcase, bookshelf, boulder, bowling ball, campfire, candlestick, cartwheel, chessboard, clothesline, coaster, corkscrew, crowbar, deckchair, doorbell,
doormat, doorstep, dustbin, earplug, eggshell, fanfare, firefly, fishbowl, flagpole, flowerpot, footstool, frying pan, gramophone, grindstone, guidebook, gunpowder, hammerhead, handcuffs, headlight, hosepipe, icebox, inkstand, jukebox, jumper, keyring, lampshade, lawnmower, letterbox, lifebelt, lockpick, mailbox, matchstick,
milkshake, moonstone, mousetrap, nutcracker, oilcloth, paintbrush, paperweight, peppermint, pinwheel, playground, quicksilver, ragdoll, rowboat, sawdust, scaffold, screwcap, shoebox, shoelace, sideboard, signpost, skylight, snowshoe, soapbox, spyglass, stepladder, stopwatch, sugar bowl, sundial, tablecloth, teacup, tightrope,
toolshed, treadmill, tugboat, turnstile, wastebasket, waterwheel, weathercock, whetstone, windchime, windscreen, wineskin, wristwatch, yardstick
""")

_ADJECTIVES = _words("""
ancient, angry, bare, bent, best, big, bitter, bold, brave, brief, bright, brisk, broad, busy, calm, careful, clean, clear, clever, cold, common, cool, cracked, cruel, cunning, curly, damp, dark, deep, delicate, dim, dirty, double-edged, dry, dull, dusty, eager, early, eastern, electric, empty, exotic,
faded, faint, famous, fancy, fast, fat, favourite, fierce, final, flat, folded, foreign, fragile, free, fresh, friendly, frozen, full, funny, gentle, giant, glossy, glowing, good, grand, greasy, great, hairy, handy, hard, hollow, holy, honest, hot, huge, humble, icy, jolly, juicy, keen, kind, large, late,
lazy, lean, little, local, lonely, loose, loud, lovely, low, main, medium, mighty, mild, modern, muddy, mysterious, narrow, nasty, near, neat, new, nice, noble, noisy, odd, only, ordinary, pale, perfect, plump, polite, poor, precious, pretty, private, proud, pure, quick, quiet, rare, raw, ready, real, rich,
right, ripe, rough, royal, rude, sacred, sad, safe, salty, second, secret, shallow, sharp, shiny, sick, silent, silly, simple, slim, slippery, slow, smooth, soft, solid, sour, spare, special, spicy, square, stale, steep, sticky, stiff, strange, striped, strong, sturdy, sweet, tall, tame, tasty, tender, thick, thin,
third, tidy, tight, tiny, tired, tough, twisted, unusual, upper, useful, vast, violet, warm, wasted, weak, western, wet, whole, wicked, wide, wild, wise, wrinkled, wrong, young
""")


def _kept() -> frozenset[str]:
    """Words of held-out entries of the other lists, which stay out of training."""
    trained: set[str] = set()
    held_out: set[str] = set()
    lists = [words.NOUNS, words.THINGS, words.SPOTS, words.BUILDINGS, words.ANIMALS, robot_words.ROOMS, robot_words.ITEMS, robot_words.FAR_PLACES, *words.WARES.values()]
    for entry in (entry for entries in lists for entry in entries):
        parts = set(entry.lower().replace("/", " ").split())
        (held_out if is_held_out(entry.partition("/")[0]) or is_held_out(entry) else trained).update(parts)
    return frozenset(held_out - trained)


_KEPT = _kept()


def _trained(options: list[str]) -> list[str]:
    return sorted({word for word in options if not is_held_out(word) and not set(word.split()) & _KEPT})


COMMON_NOUNS = _trained(_NOUNS)
COMMON_ADJECTIVES = _trained(_ADJECTIVES)
