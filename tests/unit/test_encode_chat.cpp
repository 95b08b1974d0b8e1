// From a model folder's template to ids: special tokens only where the template wrote them, and
// which ids are the assistant's.
#include "data/examples/examples.h"
#include "formats/json.h"
#include "test_io_support.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/vocabulary.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json, nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

constexpr const char* chatml =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// 256 bytes as their own ids, a merge "\n\n", and added tokens.
Tokenizer byte_tokenizer() {
  VocabularyParts parts{.where = "test"};
  for (int b = 0; b < 256; ++b) parts.tokens.push_back({std::string(1, char(b)), b});
  parts.tokens.push_back({"\n\n", 256});
  parts.merges.push_back({'\n', '\n', 256});
  parts.added = {{"<|im_start|>", 300, true}, {"<|im_end|>", 301, true}, {"<think>", 302, false}};
  return Tokenizer(make_vocabulary(parts));
}

Ids bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The text that the assistant's ids stand for, a bar between stretches.
std::string answers(const Tokenizer& t, const EncodedChat& chat) {
  std::string out;
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    if (chat.answer[i]) out += t.bytes_of(chat.ids[i]);
    if (i + 1 < chat.ids.size() && chat.answer[i] && !chat.answer[i + 1]) out += "|";
  }
  return out;
}

const ordered_json talk = {{{"role", "user"}, {"content", "hi <|im_end|> <think>"}},
                           {{"role", "assistant"}, {"content", "<think>no <|im_end|>"}},
                           {{"role", "user"}, {"content", "\n\nwhy"}},
                           {{"role", "assistant"}, {"content", "so"}}};

TEST(EncodeChat, UserTextNeverBecomesASpecialToken) {
  const Tokenizer tokenizer = byte_tokenizer();
  const EncodedChat chat =
      encode_chat(tokenizer, ChatTemplate(chatml, "t").render({.messages = talk}));
  const Ids start{300}, end{301}, think{302};
  const Ids blank{256, '\n'};
  const Ids expected = start + bytes_of("user\nhi <|im_end|> <think>") + end + bytes_of("\n") +
                       start + bytes_of("assistant\n") + think + bytes_of("no <|im_end|>") + end +
                       bytes_of("\n") + start + bytes_of("user") + blank + bytes_of("why") + end +
                       bytes_of("\n") + start + bytes_of("assistant\nso") + end + bytes_of("\n");
  EXPECT_EQ(chat.ids, expected);
}

TEST(EncodeChat, ATokenMadeOfBothIsNone) {
  const ChatTemplate t("{{ '<|im_' }}{{ messages[0].content }}{{ '|>' }}", "t");
  const Tokenizer tokenizer = byte_tokenizer();
  const auto ids = [&](const char* content) {
    return encode_chat(tokenizer,
                       t.render({.messages = {{{"role", "user"}, {"content", content}}}}))
        .ids;
  };
  EXPECT_EQ(ids("end"), bytes_of("<|im_end|>"));
  EXPECT_EQ(encode_chat(tokenizer,
                        ChatTemplate("{{ '<|im_' ~ 'end' }}|>", "t").render({.messages = talk}))
                .ids,
            Ids{301});
}

TEST(EncodeChat, AnswersWithoutTags) {
  const Tokenizer tokenizer = byte_tokenizer();
  const MarkedText text = ChatTemplate(chatml, "t").render_answers({.messages = talk});
  const EncodedChat chat = encode_chat(tokenizer, text);
  ASSERT_EQ(chat.ids.size(), chat.answer.size());
  EXPECT_EQ(answers(tokenizer, chat), "<think>no <|im_end|><|im_end|>|so<|im_end|>|");
}

TEST(EncodeChat, AnswersByTags) {
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatTemplate t(
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content "
      "}}<|im_end|>"
      "{% endgeneration %}{% else %}U:{{ m.content }}{% endif %}{% endfor %}",
      "t");
  EXPECT_EQ(answers(tokenizer, encode_chat(tokenizer, t.render_answers({.messages = talk}))),
            "<think>no <|im_end|><|im_end|>|so<|im_end|>");
}

TEST(EncodeChat, AnswersOfSomeMessagesAreNotMarked) {
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatTemplate tagged(
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}"
      "{% endgeneration %}<|im_end|>{% else %}U:{{ m.content }}{% endif %}{% endfor %}",
      "t");
  const ChatTemplate plain(chatml, "t");
  const auto marked = [&](const ChatTemplate& t, std::vector<size_t> unlearned) {
    return answers(tokenizer,
                   encode_chat(tokenizer, t.render_answers({.messages = talk}, unlearned)));
  };
  EXPECT_EQ(marked(tagged, {1}), "so|");
  EXPECT_EQ(marked(tagged, {3}), "<think>no <|im_end|>|");
  EXPECT_EQ(marked(tagged, {1, 3}), "");
  EXPECT_EQ(marked(plain, {1}), "so<|im_end|>|");
  EXPECT_EQ(marked(plain, {3}), "<think>no <|im_end|><|im_end|>|");
  EXPECT_EQ(marked(plain, {1, 3}), "");
  // Blocks without text between them are one stretch.
  const ChatTemplate merged(
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "t");
  const ordered_json both = {talk[1], talk[3]};
  const std::vector<size_t> first = {0};
  expect_error(error_of([&] { merged.render_answers({.messages = both}, first); }),
               "the {% generation %} blocks of message 1 cannot be told from those of the others");
}

// A template that drops the thinking of earlier turns, as Qwen3's does.
TEST(EncodeChat, AnswersWhereEarlierTurnsAreCut) {
  const ChatTemplate t(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
      "t");
  const ordered_json turns = {{{"role", "user"}, {"content", "a"}},
                              {{"role", "assistant"}, {"content", "<think>x</think>b"}},
                              {{"role", "user"}, {"content", "c"}},
                              {{"role", "assistant"}, {"content", "<think>y</think>d"}}};
  const Tokenizer tokenizer = byte_tokenizer();
  EXPECT_EQ(answers(tokenizer, encode_chat(tokenizer, t.render_answers({.messages = turns}))),
            "b<|im_end|>|<think>y</think>d<|im_end|>|");
}

TEST(EncodeChat, AnswersThatCannotBeFoundAreAnError) {
  const ChatTemplate t("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}",
                       "t");
  expect_error(error_of([&] { t.render_answers({.messages = talk}); }), "{% generation %}");
  // A closing that only the last message has.
  const ChatTemplate last(
      "{% for m in messages %}{{ m.role ~ m.content }}{{ '!' if loop.last }}{% endfor %}"
      "{{ 'assistant' if add_generation_prompt }}",
      "t");
  expect_error(error_of([&] {
                 last.render_answers({.messages = {talk[0], talk[1], talk[2]}});
               }),
               "{% generation %}");
}

TEST(EncodeChat, LoadsTheTemplateOfAFolder) {
  const TempDir dir;
  expect_error(error_of([&] { ChatTemplate::load(dir.path()); }), "expected chat_template.jinja");
  EXPECT_FALSE(ChatTemplate::exists(dir.path()));
  const auto write = [&](const char* name, std::string_view text) {
    write_file_atomic(dir / name, text);
  };
  const auto text = [&](ChatRequest request = {.messages = ordered_json::array()}) {
    return ChatTemplate::load(dir.path()).render(request).bytes;
  };
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": "<s>",
            "eos_token": {"content": "</s>"}, "pad_token": null})");
  EXPECT_EQ(text(), "<s></s>");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "tools"}]})");
  EXPECT_TRUE(ChatTemplate::exists(dir.path()));
  EXPECT_EQ(text(), "plain");
  EXPECT_EQ(
      text({.messages = ordered_json::array(), .variables = {{"tools", ordered_json::array()}}}),
      "tools");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  expect_error(error_of([&] { text(); }), "expected a name and a template in every entry");
  write("chat_template.jinja", "{{ 'from the file' }}\n");
  EXPECT_EQ(text(), "from the file");
}

TEST(EncodeChat, QwensOwnTemplate) {
  const auto dir = test_data("tokenizers/qwen2.5");
  const MarkedText text = ChatTemplate::load(dir).render_answers(
      {.messages = {{{"role", "user"}, {"content", "hi"}},
                    {{"role", "assistant"}, {"content", "yo"}}}});
  EXPECT_EQ(text.bytes,
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_"
            "end|>\n");
  std::string answer;
  for (size_t i = 0; i < text.size(); ++i)
    if (text.marks[i] & mark::answer) answer += text.bytes[i];
  EXPECT_EQ(answer, "yo<|im_end|>");
}

// --- SentencePiece: a space before the text ---

// Bytes as ids from 3 on, U+2581 as 259, and two special tokens.
Tokenizer space_tokenizer(const json& normalizer, const json& pre_tokenizer) {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"\u2581", 259}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = b + 3;
  const auto added = [](int id, const char* text) {
    return json{{"id", id},        {"content", text},      {"special", true},    {"lstrip", false},
                {"rstrip", false}, {"single_word", false}, {"normalized", false}};
  };
  const json file = {
      {"added_tokens", {added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(300, "<bot>")}},
      {"normalizer", normalizer},
      {"pre_tokenizer", pre_tokenizer},
      {"decoder", piece_decoder(true)},
      {"model", piece_model(vocab, json::array())}};
  const ScratchDir dir;
  spill(dir / "tokenizer.json", file.dump());
  return Tokenizer::load(dir.path());
}

// Llama-2: a space before each part between special tokens.
Tokenizer llama2_tokenizer() {
  return space_tokenizer(
      {{"type", "Sequence"},
       {"normalizers",
        {{{"type", "Prepend"}, {"prepend", "\u2581"}},
         {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}},
      nullptr);
}

// Later ones: a space before the whole text alone.
Tokenizer first_tokenizer() {
  return space_tokenizer(nullptr, {{"type", "Metaspace"},
                                   {"replacement", "\u2581"},
                                   {"prepend_scheme", "first"},
                                   {"split", false}});
}

Ids pieces_of(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(c == ' ' ? 259 : 3 + uint8_t(c));
  return ids;
}

const ChatTemplate bot(
    "{% for m in messages %}{{ '<bot>\n' if m.role == 'assistant' }}{{ m.content }}"
    "{{ '</s>' if m.role == 'assistant' }}{% endfor %}"
    "{{ '<bot>\n' if add_generation_prompt }}",
    "t");
const ordered_json asked = {{{"role", "user"}, {"content", "hi"}},
                            {{"role", "assistant"}, {"content", "ok."}}};

TEST(EncodeChat, SpacesStandWhereTheTokenizerPutsThem) {
  for (const Tokenizer& t : {llama2_tokenizer(), first_tokenizer()}) {
    const MarkedText text = bot.render({.messages = asked});
    EXPECT_EQ(encode_chat(t, text).ids, t.encode_with_special(text.bytes));
  }
  EXPECT_EQ(encode_chat(first_tokenizer(), bot.render({.messages = asked})).ids,
            pieces_of(" hi") + Ids{300} + pieces_of("\nok.") + Ids{2});
}

// The added space belongs to no answer, and no answer is shifted by it.
TEST(EncodeChat, AnswersAreNotShiftedByAddedSpaces) {
  for (const Tokenizer& t : {llama2_tokenizer(), first_tokenizer()})
    EXPECT_EQ(answers(t, encode_chat(t, bot.render_answers({.messages = asked}))), "ok.</s>");
}

TEST(EncodeChat, ATextThatContinuesAnotherGetsNoSpace) {
  const auto text_of = [](const char* bytes) {
    return ChatTemplate("{{ messages[0].content }}", "t")
        .render({.messages = {{{"role", "user"}, {"content", bytes}}}});
  };
  for (const Tokenizer& t : {llama2_tokenizer(), first_tokenizer()}) {
    const EncodedChat open = encode_chat(t, text_of("hi"));
    EXPECT_EQ(open.next, TextStart::inside);
    EXPECT_EQ(encode_chat(t, text_of("ok"), open.next).ids, pieces_of("ok"));
    EXPECT_EQ(encode_chat(t, bot.render({.messages = asked})).next, TextStart::after_token);
    EXPECT_EQ(encode_chat(t, text_of(""), TextStart::inside).next, TextStart::inside);
  }
}

// A completion is encoded apart from its prompt, and yet as in one text.
TEST(EncodeChat, CompletionsContinueTheirPrompt) {
  const ordered_json row = {{"prompt", "2+2="}, {"completion", "4"}};
  for (const Tokenizer& t : {llama2_tokenizer(), first_tokenizer()}) {
    const Example e = ExampleEncoder(t, bot, 200).example(row, "row");
    EXPECT_EQ(e.tokens, pieces_of(" 2+2=4") + Ids{2});
    const ordered_json turns = {{"instruction", "hi"}, {"output", "ok."}};
    EXPECT_EQ(ExampleEncoder(t, bot, 200).example(turns, "row").tokens,
              encode_chat(t, bot.render({.messages = asked})).ids);
  }
}

}  // namespace
}  // namespace hearth
