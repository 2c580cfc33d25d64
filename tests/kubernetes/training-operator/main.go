// The controller of PyTorchJobs alone, without its webhook, which would want certificates and a port.
package main

import (
	"flag"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	operator "github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
)

func main() {
	flag.Parse()
	ctrl.SetLogger(zap.New())
	// What its own main takes unless it is told otherwise.
	operator.Config.PyTorchInitContainerImage = operator.PyTorchInitContainerImageDefault
	operator.Config.PyTorchInitContainerTemplateFile = operator.PyTorchInitContainerTemplateFileDefault
	operator.Config.PyTorchInitContainerMaxTries = operator.PyTorchInitContainerMaxTriesDefault
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kubeflow.AddToScheme(scheme))
	config := ctrl.GetConfigOrDie()
	config.QPS, config.Burst = 500, 500
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	utilruntime.Must(err)
	jobs := pytorch.NewReconciler(manager, common.GenNonGangSchedulerSetupFunc())
	utilruntime.Must(jobs.SetupWithManager(manager, 1))
	utilruntime.Must(manager.Start(ctrl.SetupSignalHandler()))
}
