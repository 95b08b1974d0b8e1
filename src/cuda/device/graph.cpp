#include "cuda/device/graph.h"

namespace hearth::cuda {

Graph::Graph(cudaStream_t s, const std::function<void()>& launch) : stream_(s) {
  check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "beginning a graph");
  try {
    launch();
  } catch (...) {
    cudaGraph_t broken = nullptr;
    cudaStreamEndCapture(s, &broken);
    if (broken) cudaGraphDestroy(broken);
    throw;
  }
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(s, &graph), "recording a graph");
  const cudaError_t e = cudaGraphInstantiate(&exec_, graph, 0);
  cudaGraphDestroy(graph);
  check(e, "making a graph");
}

Graph::~Graph() { cudaGraphExecDestroy(exec_); }

void Graph::run() { check(cudaGraphLaunch(exec_, stream_), "a graph"); }

}  // namespace hearth::cuda
