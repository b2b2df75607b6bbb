// Dense push and pull over ps-lite: values[key] -= rate * gradient[key] on the server.
//
//   pslite KEYS ELEMENTS CYCLES RATE     DMLC_ROLE: scheduler, server or worker
//
// The worker pulls and pushes all keys CYCLES times for each line of standard input, then prints a
// line: the first value of the first key.
#include <cstdio>
#include <iostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "ps/ps.h"

using Values = ps::KVPairs<char>;

static void serve(float rate) {
  auto server = new ps::KVServer<char>(0);
  auto held = std::make_shared<std::unordered_map<ps::Key, Values>>();
  server->set_request_handle(
      [held, rate](const ps::KVMeta& meta, const Values& request, ps::KVServer<char>* self) {
        const ps::Key key = request.keys[0];
        if (!meta.push) return self->Response(meta, held->at(key));
        const size_t count = request.vals.size() / sizeof(float);
        Values& mine = (*held)[key];
        if (mine.vals.empty()) {  // the first push makes the values, zeros
          mine.keys = ps::SArray<ps::Key>(1, key);
          mine.vals = ps::SArray<char>(request.vals.size(), 0);
          mine.lens = ps::SArray<int>(1, static_cast<int>(request.vals.size()));
        } else {
          auto values = reinterpret_cast<float*>(mine.vals.data());
          auto gradient = reinterpret_cast<const float*>(request.vals.data());
          for (size_t i = 0; i < count; ++i) values[i] -= rate * gradient[i];
        }
        self->Response(meta, Values());
      });
  ps::RegisterExitCallback([server]() { delete server; });
}

static void work(int keys, size_t elements, int cycles) {
  ps::KVWorker<char> worker(0, 0);
  const ps::Key first = ps::Postoffice::Get()->GetServerKeyRanges()[0].begin();
  const int size = static_cast<int>(elements * sizeof(float));
  std::vector<ps::SArray<ps::Key>> names;
  std::vector<ps::SArray<char>> gradients, values;
  std::vector<ps::SArray<int>> lengths;
  for (int key = 0; key < keys; ++key) {
    names.emplace_back(1, first + key);
    lengths.emplace_back(1, size);
    values.emplace_back(size, 0);
    gradients.emplace_back(size, 0);
    auto gradient = reinterpret_cast<float*>(gradients.back().data());
    for (size_t i = 0; i < elements; ++i) gradient[i] = static_cast<float>(i % 7) - 3.5f;
    worker.Wait(worker.ZPush(names[key], gradients[key], lengths[key]));
  }
  auto wait = [&worker](std::vector<int>& sent) {
    for (int request : sent) worker.Wait(request);
    sent.clear();
  };
  std::vector<int> sent;
  for (std::string line; std::getline(std::cin, line);) {
    for (int cycle = 0; cycle < cycles; ++cycle) {
      for (int key = 0; key < keys; ++key)
        sent.push_back(worker.ZPull(names[key], &values[key], &lengths[key]));
      wait(sent);
      for (int key = 0; key < keys; ++key)
        sent.push_back(worker.ZPush(names[key], gradients[key], lengths[key]));
      wait(sent);
    }
    worker.Wait(worker.ZPull(names[0], &values[0], &lengths[0]));
    std::printf("%g\n", *reinterpret_cast<float*>(values[0].data()));
    std::fflush(stdout);
  }
}

int main(int, char** arguments) {
  ps::Start(0);
  if (ps::IsServer()) serve(std::stof(arguments[4]));
  if (ps::IsWorker())
    work(std::stoi(arguments[1]), std::stoul(arguments[2]), std::stoi(arguments[3]));
  ps::Finalize(0, true);
  return 0;
}
