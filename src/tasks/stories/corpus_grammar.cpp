// The word lists and rules of the embedded corpus, in the notation of grammar.h. Alternatives
// differ early, and no word of a list is a prefix of another, so a text determines the choices that
// made it.
#include "tasks/stories/corpus.h"

namespace hearth::inline tasks {
namespace {

using Lists = std::map<std::string, WordList>;
using Rules = std::map<std::string, std::vector<std::string>>;

// A list with one column.
WordList words(std::initializer_list<const char*> items) {
  WordList list{{"word"}, {}};
  for (const char* item : items) list.rows.push_back({item});
  return list;
}

// Lists with several columns: a word and its related forms.
Lists characters() {
  const auto girl = [](const char* name) {
    return std::vector<std::string>{name, "girl", "she", "She", "her", "her"};
  };
  const auto boy = [](const char* name) {
    return std::vector<std::string>{name, "boy", "he", "He", "him", "his"};
  };
  return {
      {"name",
       {{"name", "child", "he", "He", "him", "his"},
        {girl("Mia"), girl("Nora"), girl("Ruby"), girl("Lucy"), girl("Ella"), girl("Tess"),
         girl("Wren"), girl("Ivy"), boy("Tom"), boy("Ben"), boy("Leo"), boy("Max"), boy("Finn"),
         boy("Oscar"), boy("Hugo"), boy("Sam")}}},
      {"animal",
       {{"animal", "spoke", "food"},
        {{"duck", "quacked", "bread"},
         {"dog", "barked", "bones"},
         {"cat", "purred", "cream"},
         {"frog", "croaked", "flies"},
         {"owl", "hooted", "berries"},
         {"mouse", "squeaked", "cheese"},
         {"bee", "buzzed", "nectar"},
         {"crow", "cawed", "corn"},
         {"lamb", "bleated", "clover"},
         {"pony", "neighed", "apples"},
         {"pig", "grunted", "turnips"},
         {"goose", "honked", "grass"},
         {"hen", "clucked", "seeds"},
         {"wolf", "howled", "stew"},
         {"bear", "growled", "honey"},
         {"robin", "chirped", "worms"},
         {"squirrel", "chattered", "nuts"},
         {"fox", "yelped", "plums"}}}},
      {"thing",
       {{"thing", "worked"},
        {{"kite", "flew high"},
         {"ball", "bounced"},
         {"drum", "boomed"},
         {"bell", "rang"},
         {"boat", "floated"},
         {"lamp", "glowed"},
         {"top", "spun"},
         {"clock", "ticked"},
         {"flute", "sang"},
         {"wagon", "rolled along"},
         {"puppet", "danced"},
         {"coin", "shone"},
         {"ring", "sparkled"},
         {"map", "showed the way"},
         {"whistle", "shrilled"},
         {"mirror", "gleamed"}}}},
  };
}

Lists places_and_people() {
  return {
      {"place",
       {{"place", "at"},
        {{"the forest", "in the forest"},
         {"the river", "by the river"},
         {"the market", "at the market"},
         {"the meadow", "in the meadow"},
         {"the beach", "on the beach"},
         {"the park", "in the park"},
         {"the hill", "on the hill"},
         {"the barn", "in the barn"},
         {"the garden", "in the garden"},
         {"the pond", "by the pond"},
         {"the bridge", "on the bridge"},
         {"the cave", "in the cave"},
         {"the orchard", "in the orchard"},
         {"the library", "in the library"},
         {"the station", "at the station"},
         {"the school", "at the school"}}}},
      {"mood",
       {{"a", "A"},
        {{"a friendly", "A friendly"},
         {"a wise", "A wise"},
         {"a small", "A small"},
         {"a fat", "A fat"},
         {"a lost", "A lost"},
         {"a merry", "A merry"},
         {"a grumpy", "A grumpy"},
         {"a timid", "A timid"},
         {"a clever", "A clever"},
         {"a young", "A young"},
         {"a lonely", "A lonely"},
         {"a fluffy", "A fluffy"},
         {"a tired", "A tired"},
         {"an old", "An old"}}}},
      {"person", words({"mother", "father", "grandmother", "grandfather", "sister", "brother",
                        "uncle", "aunt", "teacher", "neighbour"})},
  };
}

Lists qualities() {
  return {
      {"trait", words({"a little", "a brave", "a curious", "a quiet", "a kind", "a clever",
                       "a cheerful", "a shy", "a sleepy", "a happy", "a gentle", "a busy",
                       "a noisy", "an honest", "a dreamy", "a polite", "a funny", "a patient"})},
      {"home", words({"by the blue sea", "near a deep lake", "on a green hill",
                      "at the edge of a wood", "in a busy town", "beside a slow river",
                      "on a windy farm", "under a tall mountain", "in a stone village",
                      "above a bakery", "by an old mill", "next to a castle", "on a tiny island",
                      "behind the church", "close to the desert", "along a quiet road"})},
      {"hobby",
       words({"sing",        "draw",           "dance",      "climb trees",  "count stars",
              "tell jokes",  "bake bread",     "read books", "watch birds",  "collect shells",
              "skip stones", "ride a bicycle", "play chess", "build towers", "swim",
              "paint",       "juggle",         "whistle",    "write poems",  "fly kites"})},
      {"when", words({"One morning", "One sunny day", "One evening", "One rainy day",
                      "One cold day", "On Monday", "On a windy day", "Last summer",
                      "In early spring", "Late one afternoon", "After lunch", "Before breakfast"})},
      {"colour",
       words({"red", "blue", "green", "yellow", "orange", "purple", "silver", "golden", "pink",
              "white", "brown", "black", "grey", "crimson", "violet", "turquoise"})},
      {"look",
       words({"a shiny", "a tiny", "a new", "an old", "a pretty", "a wooden", "a painted",
              "a lovely", "a strange", "a fine", "a heavy", "a round", "a broken", "a magic"})},
      {"glad", words({"happy", "proud", "glad", "calm", "merry", "thankful", "warm inside",
                      "cheerful", "full of joy", "very pleased", "delighted", "content"})},
      {"low", words({"sad", "worried", "afraid", "lonely", "cross", "upset", "gloomy", "nervous",
                     "puzzled", "tired"})},
      {"taste", words({"warm", "fresh", "sweet", "cold", "tasty", "sour", "salty", "spicy", "soft",
                       "crisp", "simple", "leftover"})},
      {"smell", words({"rain", "flowers", "smoke", "salt", "hay", "mint", "snow", "pine", "roses",
                       "cinnamon", "grass", "oranges"})},
      {"weather", words({"bright", "misty", "still", "chilly", "mild", "stormy", "clear", "dusty",
                         "golden", "frosty"})},
      {"manner", words({"quickly", "slowly", "softly", "gladly", "bravely", "quietly", "gently",
                        "happily", "carefully", "kindly", "politely", "loudly", "calmly", "eagerly",
                        "proudly", "sweetly", "firmly", "warmly"})},
  };
}

Lists things_and_events() {
  return {
      {"food", words({"soup",     "bread", "cake",  "apples",  "cookies", "pancakes", "honey",
                      "cheese",   "plums", "jam",   "rice",    "noodles", "pears",    "porridge",
                      "cherries", "pie",   "salad", "muffins", "toast",   "grapes"})},
      {"wish", words({"see the sea", "fly like a bird", "ride a train", "find a treasure",
                      "meet a king", "sleep under the stars", "learn magic", "sail far away",
                      "catch a cloud", "touch the moon", "win a race", "play in a band",
                      "wear a crown", "tame a dragon", "dive for pearls", "open a shop"})},
      {"spot",
       words({"under the bed", "behind the door", "in the tall grass", "on the roof",
              "inside a box", "beneath the stairs", "between two stones", "up in a tree",
              "near the well", "around the corner", "below the window", "beside the fire",
              "over the gate", "against the wall", "among the reeds", "across the street"})},
      {"number",
       words({"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve"})},
      {"plant", words({"rose", "bean", "pumpkin", "sunflower", "carrot", "melon", "lemon tree",
                       "tulip", "cabbage", "fig tree"})},
      {"trouble",
       words({"stuck in the mud", "caught in a net", "trapped in a hole", "tangled in a rope",
              "lost in the fog", "locked in a shed", "cold and wet", "too tired to walk"})},
      {"tool", words({"a rope", "a ladder", "a spoon", "a basket", "a blanket", "a stick",
                      "a bucket", "some string", "some glue", "a hammer"})},
      {"moral",
       words({"kindness always comes back", "a friend is the best treasure", "it is good to share",
              "small steps go far", "brave hearts keep trying", "sorry is a strong word",
              "good things take time", "listening is a gift", "two heads are better than one",
              "even little ones can help", "there is no place like home", "a smile costs nothing",
              "the truth is best", "every day can be an adventure", "practice makes perfect",
              "laughter heals the heart"})},
  };
}

Rules beginnings_and_ends() {
  return {
      {"story", {"<open><likes><scene>{:when} {hero.he} <plot>"}},
      {"open",
       {"Once upon a time {hero=name}, {:trait} {hero.child}, lived {:home}. ",
        "{hero=name} was {:trait} {hero.child} who lived {:home}. ",
        "In a house {:home} lived {hero=name}, {:trait} {hero.child}. ",
        "This is the story of {hero=name}, {:trait} {hero.child} who lived {:home}. "}},
      {"likes",
       {"{hero.He} liked to {h=hobby} and to {:hobby!h}. ",
        "Every day {hero.he} would {:hobby} with {hero.his} {:person}. ",
        "More than anything, {hero.he} loved to {:hobby}. ",
        "People said that nobody could {:hobby} like {hero}. "}},
      {"scene",
       {"The air was {:weather} and smelled of {:smell}. ",
        "It was a {:weather} season, full of {:smell}. "}},
      {"plot",
       {"<lost>", "<wish>", "<trapped>", "<shares>", "<storm>", "<present>", "<newcomer>",
        "<garden>", "<broken>", "<sound>", "<race>", "<door>"}},

      // Sentences shared by several plots.
      {"low",
       {"{hero.He} felt {:low}. ", "This made {hero.him} {:low}. ",
        "\"Oh no!\" {hero.he} cried, feeling {:low}. "}},
      {"meet",
       {"Then {hero.he} met {:mood} {animal=animal}. ", "Soon {:mood} {animal=animal} came along. ",
        "{hero.He} asked {:mood} {animal=animal} for help. "}},
      {"thanks",
       {"\"Thank you,\" said the {hero.child} {:manner}. ",
        "{hero.He} thanked the {animal} and gave it some {animal.food}. ",
        "The {animal} {animal.spoke} {:manner}. "}},
      {"end",
       {"{hero.He} felt {:glad}. ", "In the end everyone was {:glad}. ",
        "That night {hero.he} slept well, {:glad} at last. "}},
      {"end_animal",
       {"From that day on, {hero.he} and the {animal} were best friends. <moral>",
        "Together {hero.he} and the {animal} shared some {:taste} {:food}. <moral>",
        "The {animal} went home, and {hero.he} was {:glad}. <moral>"}},
      {"end_friend",
       {"From that day on, the two children were best friends. <moral>",
        "Together the two shared some {:taste} {:food}. <moral>",
        "After that, both of them were {:glad}. <moral>"}},
      {"moral",
       {"{hero} learned that {:moral}.", "And so they knew that {:moral}.", "Remember: {:moral}."}},

      // Plots, each after "One morning NAME ".
      {"meet_race", {"On the road lay {:mood} {animal=animal}, {:trouble}. "}},
  };
}

Rules plots_of_need() {
  return {
      {"lost",
       {"could not find {hero.his} {:colour} {thing=thing}. <low>{hero.He} looked {s=spot} and "
        "{:spot!s}, but it was gone. <meet>\"[Have you seen|Do you know who took] my {thing}?\" "
        "asked the {hero.child}. The {animal} {animal.spoke} and [pointed to|ran to|looked at] "
        "{place=place}. There it was, {:spot}! <thanks><end_animal>"}},
      {"wish",
       {"made a wish. {hero.He} wanted to {:wish}. \"[That is too hard|You are too small|Nobody "
        "can do that]!\" said {hero.his} {p=person}. But {hero.he} [did not give up|kept "
        "trying|had a plan]. For {:number} days {hero.he} worked {:manner} {place.at=place}. "
        "<meet>Together they found {:look} {:colour} {thing=thing}, and it {thing.worked}. "
        "[At last|Suddenly] the wish came true! The {p} was {:glad}. <moral>"}},
      {"trapped",
       {"heard a cry from {place=place}. It was {:mood} {animal=animal}, {:trouble}. "
        "\"[Please help me|I want to go home|Do not leave me]!\" it {animal.spoke}. <low>Then "
        "{hero.he} had an idea. {hero.He} ran to get {:tool} and worked {:manner}. After "
        "{:number} tries the {animal} was free. <thanks><end_animal>"}},
      {"shares",
       {"carried a basket of {:taste} {food=food} to {place=place}. On the way {hero.he} saw "
        "{:mood} "
        "{animal=animal} sitting {:spot}. \"I have not eaten for {:number} days,\" it "
        "{animal.spoke}. {hero.He} [stopped|sat down|smiled] and gave it half of the {food}. "
        "\"[You are kind|I will not forget this|How good it tastes],\" said the {animal}. Later "
        "it brought {hero.him} {:look} {:colour} {thing=thing}. The {thing} {thing.worked}! "
        "<end_animal>"}},
      {"storm",
       {"saw dark clouds over {place=place}. The wind blew [loudly|coldly|all day|from the north], "
        "and {hero.he} was {:low}. "
        "{hero.He} hid {:spot} with {hero.his} {p=person}. \"[Let us sing|Hold my hand|It will "
        "pass],\" said the {p}. They ate {:taste} {:food} and told {:number} stories about "
        "{:mood} {animal=animal}. [When the rain stopped|When the sun came out], the sky was "
        "{c=colour} and {:colour!c}. <end><moral>"}},
      {"present",
       {"wanted to make a present for {hero.his} {p=person}. {hero.He} took {:tool} and "
        "{:number} {:colour} buttons and sat down {:spot}. {hero.He} worked {:manner}, but it "
        "broke. <low><meet>\"[Try again|Take your time|Let me hold it],\" it "
        "{animal.spoke}. By evening there was {:look} {:colour} {thing=thing}, and it "
        "{thing.worked}. The "
        "{p} was {:glad}. <end_animal>"}},
  };
}

Rules plots_of_chance() {
  return {
      {"newcomer",
       {"saw a new child {place.at=place}. The new child was called {friend=name!hero} and looked "
        "{:low}. \"[Do you want to play|Shall we be friends|Can you {:hobby}]?\" asked the "
        "{hero.child}. The new child nodded {:manner}. {friend.He} had {:look} {:colour} "
        "{thing=thing} and "
        "some "
        "{:taste} {:food}. They played until dark, and the {thing} {thing.worked}. {:mood.A} "
        "{animal=animal} watched them, hidden {:spot}. <end_friend>"}},
      {"garden",
       {"planted a {plant=plant} {place.at=place}. {hero.He} watered it {:manner} for {:number} "
        "days, but nothing grew. <low>\"[Wait a little|Give it some sun|Sing to it],\" said "
        "{hero.his} {p=person}. <meet>The {animal} dug {:manner} and {animal.spoke}. [In the "
        "morning|A week later] the {plant} was tall and {:colour}. They made {:taste} {:food} for "
        "the "
        "{p}. <end_animal>"}},
      {"broken",
       {"took {:look} {:colour} {thing=thing} that belonged to {friend=name!hero}. {hero.He} "
        "dropped it "
        "{:spot}, and it broke into {:number} pieces. <low>{hero.He} hid it {place.at=place}, but "
        "{hero.his} {p=person} saw it. \"[You must tell the truth|Go and say sorry|We can mend "
        "it],\" said the {p} {:manner}. {hero.He} mended it with {:tool}. Then the {thing} "
        "{thing.worked} again. \"I forgive you,\" said the {friend.child}. <end_friend>"}},
      {"sound",
       {"heard a strange sound from {place=place}. \"[Is it a ghost|Who is there|Is it a "
        "dragon]?\" {hero.he} asked {:manner}. {hero.He} was {:low}, but {hero.he} took {:tool} "
        "and went to look. Something moved {:spot}. It was only {:mood} {animal=animal} with "
        "{:number} little ones! The {animal} {animal.spoke} for {animal.food}. {hero.He} laughed "
        "and "
        "gave them some {:taste} {:food}. <end_animal>"}},
      {"race",
       {"had a race with {friend=name!hero}. They ran from {a=place} to {:place!a}. {friend.He} "
        "ran "
        "[fast|like the wind|at full speed], and soon {friend.he} was far ahead. "
        "<meet_race>{hero.He} "
        "stopped to help it, "
        "though {hero.he} was {:low}. The {animal} {animal.spoke} and showed {hero.him} a short "
        "way {:spot}. [Both won|Nobody lost|They came in together]! The prize was {:look} "
        "{thing=thing}. <end_friend>"}},
      {"door",
       {"found {:look} {:colour} door {place.at=place}. Behind it was a room full of {:taste} "
        "{:food}. "
        "{:mood.A} {animal=animal} slept {:spot}. \"[Come in|Who are you|Do not be afraid],\" "
        "it {animal.spoke}. They ate {:number} bowls of them and looked at {:look} {:colour} "
        "{thing=thing} that "
        "{thing.worked} {:manner}. [When it was late|When the clock struck {:number}], {hero.he} "
        "went home and told {hero.his} {:person}. <end><moral>"}},
  };
}

// Merges all parts, whose names are disjoint.
template <typename Map>
Map joined(std::initializer_list<Map> parts) {
  Map all;
  for (Map part : parts) all.merge(part);
  return all;
}

}  // namespace

const Grammar& story_grammar() {
  static const Grammar grammar(
      {.lists = joined({characters(), places_and_people(), qualities(), things_and_events()}),
       .rules = joined({beginnings_and_ends(), plots_of_need(), plots_of_chance()}),
       .start = "story"});
  return grammar;
}

}  // namespace hearth::inline tasks
